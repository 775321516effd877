"""gpt-oss: a sequence of messages. Each has a header with its channel and, optionally, its recipient.

    <|channel|>analysis<|message|>The user wants the weather.<|end|><|start|>assistant<|channel|>commentary
    to=functions.get_weather <|constrain|>json<|message|>{"city": "Köln"}<|call|>

(without the line break). `analysis` is reasoning. `final` is content, and so is `commentary` without a recipient. A
message to a function is a call, on every channel. A message to any other recipient is reasoning: this includes the
model's built-in tools, and functions if calls are not allowed. The recipient can precede the channel. The prompt ends
with <|start|>assistant, so the first header begins after it. Text without a header is content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from enum import Enum, auto

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Read, ToolForm
from services.router.chat.parsers.json_call import read_value
from services.router.chat.tools import TOOL_NAME

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END = "<|end|>"
# Tokens that end a message. The last two also end the answer if they are end tokens of the model.
ENDS = (END, "<|call|>", "<|return|>")
TOKENS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
FUNCTIONS = "functions."
# Texts with which a header can begin.
HEADER_BEGINS = (START, CHANNEL, MESSAGE, "to=")
# Longer text is not a header.
MAX_HEADER_CHARS = 256

_RECIPIENT = re.compile(r"(?:^|[\s>])to=((?:(?!<\|)\S)+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(analysis|commentary|final)\b")
# Text without special tokens. Every special token of this form begins with "<".
_PLAIN = re.compile(r"[^<]+")

Emit = Callable[[str], None]


class Kind(Enum):
    CONTENT = auto()
    REASONING = auto()
    CALL = auto()


@dataclass(frozen=True, slots=True)
class Header:
    # Empty if there is no known channel.
    channel: str = ""
    recipient: str = ""

    @staticmethod
    def of(text: str) -> Header:
        """Parses a header. `text`: the header, without the <|message|> that ends it."""
        channel, recipient = _CHANNEL.search(text), _RECIPIENT.search(text)
        return Header("" if channel is None else channel[1], "" if recipient is None else recipient[1])

    def function(self, names: Container[str]) -> str:
        """Returns the function that the message is for; empty if none. A message can address the functions in `names`
        without the namespace `functions.`."""
        name = self.recipient.removeprefix(FUNCTIONS)
        is_function = name in names or (name != self.recipient and TOOL_NAME.fullmatch(name) is not None)
        return name if is_function else ""

    def kind(self, names: Container[str], *, may_call: bool) -> Kind:
        """Returns the kind of the message that has this header. `names`: as in `function`."""
        if may_call and self.function(names):
            return Kind.CALL
        is_content = self.channel == "final" or (self.channel != "analysis" and not self.recipient)
        return Kind.CONTENT if is_content else Kind.REASONING


FINAL = Header("final")


@dataclass(frozen=True, slots=True)
class HarmonyReader:
    may_call: bool = True
    # Whether reasoning is reported apart from content.
    tells_reasoning: bool = True
    # Header of the message that the prompt has already begun. None: the text begins with a header.
    begins: Header | None = None
    # Set if the answer must be a structure. It reads the first message that is content, and all text after that
    # message. None: messages that are content are ordinary text.
    structure: Read | None = None

    def read(self, feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
        content = _Texts(builder.content)
        reasoning = _Texts(builder.reasoning) if self.tells_reasoning else content
        header: Header | str = self.begins or (yield from _read_header(feed))
        while True:
            kind = Kind.CONTENT if isinstance(header, str) else header.kind(functions, may_call=self.may_call)
            if kind is Kind.CALL and isinstance(header, Header):
                yield from _read_call(feed, builder, header.function(functions))
            elif kind is Kind.CONTENT and self.structure is not None:
                yield from self.structure(feed, builder, functions)
            else:
                texts = reasoning if kind is Kind.REASONING else content
                texts.begin()
                if isinstance(header, str):
                    texts.add(without(header, builder.hidden_tokens))
                yield from _read_text(feed, texts.add, builder.hidden_tokens)
            yield from feed.all(SPACE)
            if not (yield from feed.peek()):
                return
            header = yield from _read_header(feed)


class _Texts:
    """Emits the texts of several messages, with line breaks between them."""

    __slots__ = ("_emit", "_is_empty", "_is_next")

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._is_empty = True
        # Whether the next text begins a further message. It is then emitted after a newline.
        self._is_next = False

    def begin(self) -> None:
        self._is_next = not self._is_empty

    def add(self, text: str) -> None:
        if text:
            self._emit(f"\n{text}" if self._is_next else text)
            self._is_empty = self._is_next = False


def without(text: str, tokens: tuple[str, ...]) -> str:
    for token in tokens:
        text = text.replace(token, "")
    return text


def _read_header(feed: Feed) -> Reading[Header | str]:
    """Takes a header and the <|message|> after it, and returns the header. If <|message|> is missing, the header ends
    where the message or the whole text ends. If the text turns out to be content and not a header, returns the text
    that was taken."""
    pieces = [(yield from feed.all(SPACE))]
    begin = yield from feed.one_of(HEADER_BEGINS)
    if not begin:
        return pieces[0]
    if begin == MESSAGE:
        return Header()
    is_marked = begin in (START, CHANNEL)
    pieces.append(begin)
    size = 0
    while size < MAX_HEADER_CHARS:
        character = yield from feed.peek()
        if character == "<" and (yield from feed.word(MESSAGE)):
            return Header.of("".join(pieces))
        if not character or (character == "<" and (yield from _is_at_end(feed))):
            break
        if character == "<" and (yield from feed.word(CHANNEL)):
            is_marked = True
            pieces.append(CHANNEL)
        else:
            pieces.append(feed.here(_PLAIN) or feed.take())
        size += len(pieces[-1])
    text = "".join(pieces)
    # If <|message|> is missing, the text is a header only if it has <|start|> or <|channel|>. Otherwise it is content.
    return Header.of(text) if is_marked and size < MAX_HEADER_CHARS else text


def _is_at_end(feed: Feed) -> Reading[bool]:
    """Returns whether the text continues with a token that ends a message."""
    mark = yield from feed.one_of((*ENDS, START))
    feed.put_back(mark)
    return bool(mark)


def _read_text(feed: Feed, emit: Emit, hidden_tokens: tuple[str, ...] = ()) -> Reading[None]:
    """Takes the rest of a message, and the message's end token if there is one. Emits the rest without
    `hidden_tokens`."""
    while character := (yield from feed.peek()):
        if character == "<":
            if (yield from _is_at_end(feed)):
                yield from feed.one_of(ENDS)
                return
            if (yield from feed.one_of(hidden_tokens)):
                continue
        emit(feed.here(_PLAIN) or feed.take())


def _read_call(feed: Feed, builder: MessageBuilder, name: str) -> Reading[None]:
    yield from feed.all(SPACE)
    character = yield from feed.peek()
    if not character:
        # A call that is truncated before its arguments does not count.
        return
    builder.begin_call(name)
    if character in "{[":
        yield from read_value(feed, builder.arguments)
        # Drops surplus closing braces.
        yield from _read_text(feed, _ignore)
    elif character == "<" and (yield from _is_at_end(feed)):
        builder.arguments("{}")
        yield from _read_text(feed, _ignore)
    else:
        yield from _read_text(feed, builder.arguments)


def _ignore(_: str) -> None:
    pass


def _write(calls: list[tuple[str, str]]) -> str:
    return f"{END}{START}assistant".join(
        f"{CHANNEL}commentary to={FUNCTIONS}{name} {CONSTRAIN}json{MESSAGE}{arguments}" for name, arguments in calls
    )


# gpt-oss' form of tool calls as a ToolForm, for code that handles every model's tool calls in the same way.
HARMONY_CALLS = ToolForm(HarmonyReader().read, _write, TOKENS)
