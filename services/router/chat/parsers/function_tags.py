"""Calls written as tags, with the arguments as text. Only the function's schema tells an argument's type.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Köln
    </parameter>
    </function>
    </tool_call>

String arguments are streamed; every other argument is passed on once it is complete.

Models forget tags, so the parser also accepts:

- A call without the outer tags, if it names one of the request's functions.
- A parameter without an end tag, if the next line begins with the tag of another parameter or with the end of the call.
  The end of the call is the outer end tag, or the function's end tag if the text ends there or another call follows.

Qwen3-Coder and Qwen3.5 use this form. Seed-OSS has other outer tags and no line breaks beside values:

    <seed:tool_call>
    <function=get_weather>
    <parameter=city>Köln</parameter>
    </function>
    </seed:tool_call>

A grammar makes calls of strict tools match their schemas. Their arguments have the order of the schema. An argument
that is always a string or null is bare text. Any other is JSON: if it can be a string or a number, the string has
quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from services.router.chat.argument_schema import ANY_TEXT, NoValueError, ObjectSchema, TextValue, assertions
from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import read_marked
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import CallsGrammar, Functions, Marked, Read, Schemas, ToolForm, WantedCalls
from services.router.chat.parsers.json_call import NAME_CHARACTERS, Emit, read_value
from services.router.chat.parsers.reasoning import ReasoningForm
from services.router.chat.parsers.rules import Rules
from services.router.chat.parsers.schema_values import ArgumentTypes, ArgumentWriter
from services.router.chat.tools import TOOL_NAME
from services.router.grammar import literal_regex, quoted
from services.router.template import parsed_arguments
from shared.grammar import GrammarError

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_KEY = re.compile(r"[^>\n]+")
_PLAIN = re.compile(r"[^<\n]+")
# A line break, as an expression of a grammar.
_LINE_BREAK = r'"\n"'
_JSON_WORD = re.compile(r"[^\s<]+")


class _End(NamedTuple):
    """What ended a parameter's value. By default: its own end tag, or the end of the text."""

    # Key of the next parameter, if the tag that begins this parameter ended the value.
    next_key: str = ""
    # Whether the end tag of the whole call ended the value.
    is_function: bool = False


@dataclass(frozen=True, slots=True)
class FunctionTags:
    """The form of tool calls that are written as function tags. Variants of this form differ in the outer tags and in
    the line breaks."""

    begin: str
    end: str
    # Text that the model writes between a parameter's tags and its value.
    line_break: str

    def form(self) -> ToolForm:
        return ToolForm(self.read, self.write, (self.begin, self.end), shape=Marked(self.begin, self))

    def read(self, feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
        types = ArgumentTypes(functions)
        ends = {self.begin: self.end, _FUNCTION: self.end}

        def read(marker: str) -> Reading[bool]:
            if marker == _FUNCTION:  # The outer tag is missing, so the name must be a function of the request.
                return (yield from self._read_call(feed, builder, types, functions, is_marked=False))
            return (yield from feed.word(_FUNCTION)) and (
                yield from self._read_call(feed, builder, types, functions, is_marked=True)
            )

        yield from read_marked(feed, builder, ends, read)

    def _read_call(
        self, feed: Feed, builder: MessageBuilder, types: ArgumentTypes, functions: Functions, *, is_marked: bool
    ) -> Reading[bool]:
        """Reads a call after its `<function=`. Returns False if the text is not a call. `is_marked`: whether the outer
        begin tag precedes the call. If it is missing, only calls of the request's functions count as calls."""
        name = yield from feed.all(NAME_CHARACTERS)
        if not TOOL_NAME.fullmatch(name) or not (is_marked or name in functions) or not (yield from feed.word(">")):
            return False
        keys: set[str] = set()
        end = _End()
        while not end.is_function:
            key = end.next_key
            if not key:
                yield from feed.all(SPACE)
                if not (yield from feed.word(_PARAMETER)):
                    break
                key = yield from feed.all(_KEY)
                if not (yield from feed.word(">")) and not keys and feed.is_cut(">"):
                    return False
            if not keys:
                builder.begin_call(name)
            builder.arguments(f"{', ' if keys else '{'}{json.dumps(key, ensure_ascii=False)}: ")
            keys.add(key)
            writer = ArgumentWriter(builder.arguments, types.of(name, key))
            may_follow = _other_keys(types, name, keys)
            end = yield from self._read_value(feed, may_follow, functions, writer.write)
            writer.close()
        has_ended = end.is_function or (yield from feed.word(_FUNCTION_END))
        if not keys:
            # The call has no argument. If its end tag is missing, too, the text does not count as a call in two cases:
            # if the text is truncated, or if the outer tag is also missing, because it might not be a call at all.
            if not has_ended and (not is_marked or feed.is_cut(_PARAMETER, _FUNCTION_END)):
                return False
            builder.begin_call(name)
        builder.arguments("}" if keys else "{}")
        return True

    def _read_value(
        self, feed: Feed, may_follow: Callable[[str], bool], functions: Functions, emit: Emit
    ) -> Reading[_End]:
        """Takes a parameter's value and the tag that ends it, and emits the value without the line breaks beside the
        tags. Returns how the value ended. `may_follow(key)` returns whether the key can be that of the next parameter.
        If the text ends within the value, text that could be the start of a tag is not emitted."""
        yield from feed.word("\n")
        held, is_new_line = "", True
        while character := (yield from feed.peek()):
            if character == "<" and (yield from feed.word(_PARAMETER_END)):
                return _End()
            if character == "<" and is_new_line and (yield from feed.word(_PARAMETER)):
                key = yield from feed.all(_KEY)
                has_ended = yield from feed.word(">")
                if has_ended and may_follow(key):
                    return _End(next_key=key)
                if not has_ended and feed.is_cut(">"):
                    return _End()
                emit(f"{held}{_PARAMETER}{key}{'>' if has_ended else ''}")
                held, is_new_line = "", False
                continue
            if character == "<" and is_new_line and (yield from feed.word(_FUNCTION_END)):
                space = yield from feed.all(SPACE)
                if (yield from self._call_is_over(feed, functions)):
                    return _End(is_function=True)
                is_new_line = space.endswith("\n")
                emit(f"{held}{_FUNCTION_END}{space[:-1] if is_new_line else space}")
                held = "\n" if is_new_line else ""
                continue
            if character == "<" and is_new_line and (yield from feed.ahead(self.end)):
                return _End(is_function=True)
            line_tags = (_PARAMETER, _FUNCTION_END, self.end) if is_new_line else ()
            if character == "<" and feed.is_cut(_PARAMETER_END, *line_tags):
                feed.take(feed.num_left)
                return _End()
            if held:
                emit(held)
            held, is_new_line = "", character == "\n"
            if is_new_line:
                held = feed.take()
            else:
                emit(feed.here(_PLAIN) or feed.take())
        return _End()

    def _call_is_over(self, feed: Feed, functions: Functions) -> Reading[bool]:
        """Returns whether the function's end tag, which was just taken, ends the call. It does if the outer end tag,
        another call or nothing follows."""
        if (yield from feed.ahead(self.end)) or (yield from feed.ahead(self.begin)):
            return True
        if feed.is_cut(self.end, self.begin, _FUNCTION):
            return True
        if not (yield from feed.word(_FUNCTION)):
            return False
        name = yield from feed.all(NAME_CHARACTERS)
        is_call = name in functions and (yield from feed.ahead(">"))
        is_cut = feed.is_cut(">")
        feed.put_back(_FUNCTION + name)
        return is_call or is_cut

    def write(self, calls: list[tuple[str, str]]) -> str:
        return "\n".join(
            f"{self.begin}\n{_FUNCTION}{name}>\n{self._parameters(arguments)}{_FUNCTION_END}\n{self.end}"
            for name, arguments in calls
        )

    def _parameters(self, arguments: str) -> str:
        written = []
        for key, value in parsed_arguments(arguments).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            # The parser removes one line break beside each tag. If the value begins or ends with a line break, an extra
            # one is therefore written on both sides.
            around = "\n" if "\n" in (text[:1], text[-1:]) else self.line_break
            written.append(f"{_PARAMETER}{key}>{around}{text}{around}{_PARAMETER_END}\n")
        return "".join(written)

    def grammar(self, wanted: WantedCalls) -> CallsGrammar:
        """As OwnArguments.grammar. Arguments of functions that are not strict can be any text."""
        rules = Rules()
        calls = [self._strict_call(name, ObjectSchema.of_tool(schema), rules) for name, schema in wanted.strict.items()]
        if wanted.names:
            value = rules.lazy(f"/>{literal_regex(self.line_break)}(?s:.*){literal_regex(_PARAMETER_END)}/")
            key = rules.terminal(r"/[^>\n]+/")
            parameter = rules.rule(f'"{_PARAMETER}" {key} {value} {_LINE_BREAK}')
            calls.append(f'name ">\\n" {parameter}*')
        end = wanted.expression(f"{_FUNCTION_END}\n{self.end}")
        one = rules.rule(f"({' | '.join(calls)}) {end}")
        begin, again = (wanted.expression(f"{before}\n{_FUNCTION}") for before in ("", f"\n{self.begin}"))
        further = f" ({again} {one})*" if wanted.several else ""
        return CallsGrammar(f"{begin} {one}{further} space", rules.text, rules.schemas)

    def _strict_call(self, name: str, arguments: ObjectSchema, rules: Rules) -> str:
        parts, texts = [quoted(f"{name}>\n")], _texts(arguments)
        for key, schema in arguments.properties.items():
            if key not in texts:
                continue
            if not _KEY.fullmatch(key):
                raise GrammarError(f"this model's form of tool calls cannot write the argument {key[:64]!r}")
            tag = quoted(f"{_PARAMETER}{key}>{self.line_break}")
            parameter = f"{tag} {self._value(texts[key], schema, arguments, rules)}"
            parts.append(parameter if key in arguments.required else f"({parameter})?")
        if None in texts:
            named = "|".join(map(literal_regex, arguments.properties))
            excluded = f" & ~/{_PARAMETER}({named})>(?s:.*)/" if named else ""
            tag = rules.terminal(rf"/{_PARAMETER}[^>\n]+>{literal_regex(self.line_break)}/{excluded}")
            parts.append(f"({tag} {self._value(texts[None], arguments.additional, arguments, rules)})*")
        return " ".join(parts)

    def _value(self, text: TextValue | None, schema: Any, arguments: ObjectSchema, rules: Rules) -> str:
        """Returns an expression for an argument's value and the tag that ends it. `text`: from `_texts`."""
        if text is None:
            value = rules.json(assertions(schema), arguments.definitions)
            return f"{value} {quoted(self.line_break + _PARAMETER_END)} {_LINE_BREAK}"
        end = literal_regex(_PARAMETER_END)
        value = rules.lazy(f"/({text.regex}){literal_regex(self.line_break)}{end}/ & ~/(?s:.*){end}(?s:.+)/")
        return f"{value} {_LINE_BREAK}"

    def reader(self, strict: Schemas) -> Read:
        texts = {name: _texts(ObjectSchema.of_tool(schema)) for name, schema in strict.items()}

        def read(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
            values = _Values(texts, ArgumentTypes(functions))
            yield from feed.all(SPACE)
            while (yield from feed.word(self.begin)) and (yield from self._read_exactly(feed, builder, values)):
                yield from feed.all(SPACE)
            while (yield from feed.peek()):  # the rest of a call that was cut
                feed.take(feed.num_left)

        return read

    def _read_exactly(self, feed: Feed, builder: MessageBuilder, values: _Values) -> Reading[bool]:
        """Reads a call of the grammar. Returns whether it is complete. A call that was cut before its first value is
        left out."""
        yield from feed.all(SPACE)
        if not (yield from feed.word(_FUNCTION)):
            return False
        name = yield from feed.all(NAME_CHARACTERS)
        if not (yield from feed.word(">")):
            return False
        yield from feed.all(SPACE)
        before = "{"
        while (yield from feed.word(_PARAMETER)):
            key = yield from feed.all(_KEY)
            if not (yield from feed.word(">")):
                break
            if before == "{":
                builder.begin_call(name)
            builder.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            before = ", "
            text = values.text(name, key)
            if text is None:
                if not (yield from self._read_json(feed, builder.arguments)):
                    return False
            else:
                # A regular expression describes the whole text. In any other, the model may put line breaks beside the
                # tags, even if this form has none there.
                line_break = self.line_break if text.regex != ANY_TEXT else "\n"
                yield from self._read_text(feed, ArgumentWriter(builder.arguments, text.types), line_break)
            yield from feed.all(SPACE)
        is_complete = yield from feed.word(_FUNCTION_END)
        if before == "{":
            if not is_complete:
                return False
            builder.begin_call(name)
            builder.arguments("{")
        builder.arguments("}")
        yield from feed.all(SPACE)
        return (yield from feed.word(self.end))

    def _read_text(self, feed: Feed, writer: ArgumentWriter, line_break: str) -> Reading[None]:
        """Takes a value that is text, and the tag that ends it. `line_break`: left out at both ends of the text."""
        yield from feed.word(line_break)
        held = ""
        while character := (yield from feed.peek()):
            if character == "<" and (yield from feed.word(_PARAMETER_END)):
                break
            if character == "<" and feed.is_cut(_PARAMETER_END):
                feed.take(feed.num_left)
                break
            writer.write(held)
            held = feed.take() if character == line_break else ""
            if not held:
                writer.write(feed.here(_PLAIN) or feed.take())
        writer.close()

    def _read_json(self, feed: Feed, emit: Emit) -> Reading[bool]:
        """Takes a value that is JSON, and the tag that ends it. Returns False if the text was cut before the tag."""
        yield from feed.all(SPACE)
        if (yield from feed.peek()) in ('"', "{", "["):
            yield from read_value(feed, emit)
        else:
            emit((yield from feed.all(_JSON_WORD)))
        yield from feed.all(SPACE)
        return (yield from feed.word(_PARAMETER_END))


# How each argument of a strict tool is written as text; None if it is JSON. The key is None for arguments that the
# schema does not name. An argument that can have no value is left out.
_Texts = Mapping[str | None, TextValue | None]


def _texts(arguments: ObjectSchema) -> _Texts:
    """Raises NoValueError if a required argument can have no value, and TooComplicatedError. The grammar and the reader
    use this function, so that they agree."""
    found: dict[str | None, TextValue | None] = {}
    # By schema, because arguments can share a large one.
    known: dict[str, TextValue | None] = {}
    for key, schema in (*arguments.properties.items(), (None, arguments.additional)):
        try:
            source = json.dumps(assertions(schema))
            if source not in known:
                known[source] = TextValue.of(schema, arguments.definitions, _PARAMETER_END)
            found[key] = known[source]
        except NoValueError:
            if key in arguments.required:
                raise
    return found


class _Values:
    """How the arguments of one message are written."""

    __slots__ = ("_strict", "_types")

    def __init__(self, strict: Mapping[str, _Texts], types: ArgumentTypes) -> None:
        self._strict = strict
        self._types = types

    def text(self, function: str, key: str) -> TextValue | None:
        """Returns how an argument is written as text; None if it is JSON."""
        texts = self._strict.get(function)
        if texts is None:
            return TextValue(ANY_TEXT, self._types.of(function, key))
        return texts.get(key, texts.get(None))


def _other_keys(types: ArgumentTypes, name: str, keys: set[str]) -> Callable[[str], bool]:
    return lambda key: bool(key) and key not in keys and types.may_have(name, key)


QWEN3_CODER = FunctionTags("<tool_call>", "</tool_call>", line_break="\n").form()
SEED_OSS = FunctionTags("<seed:tool_call>", "</seed:tool_call>", line_break="").form()
# Seed-OSS sometimes writes within its reasoning how many tokens of its thinking budget are left. With a budget of 0,
# its template puts the beginning of such a remark at the end of the prompt.
SEED_THINK = ReasoningForm("<seed:think>", "</seed:think>", opens=("<seed:think><seed:cot_budget_reflect>",))
