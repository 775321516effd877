"""gpt-oss' message form (OpenAI's Harmony format), in which each message has a channel. parsers/harmony.py shows an
example."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from services.router.chat.answer_grammar import Tags, named
from services.router.chat.call_grammar import CallAlternatives
from services.router.chat.harmony_count import HarmonyCount
from services.router.chat.message_form import Asked
from services.router.chat.parsers import (
    CHANNEL,
    CONSTRAIN,
    END,
    FINAL,
    FUNCTIONS,
    HARMONY_CALLS,
    MESSAGE,
    START,
    TOKENS,
    Feed,
    Functions,
    HarmonyReader,
    Header,
    Kind,
    MessageBuilder,
    Read,
    Reading,
    Schemas,
    ToolForm,
    forced_calls,
    pass_through,
)
from services.router.grammar import literal_regex
from services.router.text import Vocabulary

_THOUGHTS = f"{CHANNEL}analysis{MESSAGE}"


@dataclass(frozen=True, slots=True)
class HarmonyMessages:
    """A MessageForm for gpt-oss. Headers are parsed even if calls and reasoning are not reported."""

    # If `tells_calls` is False, calls are reported as reasoning. If `tells_reasoning` is False, reasoning is reported
    # as content.
    tells_calls: bool = True
    tells_reasoning: bool = True

    @property
    def tools(self) -> ToolForm | None:
        return HARMONY_CALLS if self.tells_calls else None

    @property
    def heeds_prompt(self) -> bool:
        return True

    @property
    def calls_fit_structures(self) -> bool:
        return True

    @property
    def calls_follow_schemas(self) -> bool:
        return self.tells_calls

    @property
    def thinking_tags(self) -> tuple[str, str] | None:
        return (_THOUGHTS, END) if self.tells_reasoning else None

    def plan(self, asked: Asked, prompt_end: str, vocabulary: Vocabulary) -> HarmonyPlan:
        may_call = self.tells_calls and asked.may_call
        structure: Read | None = None
        if asked.has_structure:
            structure = forced_calls(asked.choice) or _read_rest
        begins = FINAL if asked.is_continued else _open_header(prompt_end)
        return HarmonyPlan(
            HarmonyReader(may_call, self.tells_reasoning, begins, structure),
            asked.may_think,
            tuple(tool.name for tool in asked.tools),
            vocabulary.shown_text,
            asked.schemas,
            asked.has_structure,
        )


def _open_header(prompt_end: str) -> Header | None:
    """Returns the header of the message that is still open at the end of the prompt. None: no message is open, or its
    header is incomplete."""
    _, start, message = prompt_end.rpartition(START)
    header, mark, text = message.partition(MESSAGE)
    return Header.of(header) if start and mark and END not in text else None


def _read_rest(feed: Feed, builder: MessageBuilder, _: Functions) -> Reading[None]:
    yield from pass_through(feed, builder)


@dataclass(frozen=True, slots=True)
class HarmonyPlan:
    """A MessagePlan for gpt-oss."""

    reader: HarmonyReader
    # Whether the model may reason before a structure.
    may_think: bool = True
    names: tuple[str, ...] = ()
    token_text: Callable[[int], str] = str
    # Schemas of strict functions, by name.
    schemas: Schemas = field(default_factory=dict)
    has_structure: bool = True

    @property
    def tags(self) -> tuple[str, ...]:
        return TOKENS

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def reasons(self) -> bool:
        return self.reader.tells_reasoning

    @property
    def is_inside(self) -> bool:
        return self._begins is Kind.REASONING

    def read(self, feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
        return self.reader.read(feed, builder, functions)

    def count(self, builder: MessageBuilder) -> HarmonyCount | None:
        return HarmonyCount(self.reader, self.names, self.token_text) if self.reasons else None

    def grammar(self, tags: Tags) -> HarmonyGrammar:
        names = [name for name in self.names if name not in self.schemas] if self.reader.may_call else []
        functions = CallAlternatives(names, self.schemas)
        return HarmonyGrammar(tags, self._begins, self.may_think, functions, self.has_structure)

    @property
    def _begins(self) -> Kind | None:
        begins = self.reader.begins
        return None if begins is None else begins.kind(self.names, may_call=self.reader.may_call)


@dataclass(frozen=True, slots=True)
class HarmonyGrammar:
    """Grammar of a whole answer: optional reasoning, then either the final message, which is the structure, or a call.
    There is at most one call, because the token that ends a call, <|call|>, also ends the answer. Without a structure,
    the final message is any text, and several messages on the channels `analysis` and `commentary` can precede it."""

    tags: Tags
    # Kind of the message that the prompt has already begun. None: the answer begins with a header.
    begins: Kind | None = None
    may_think: bool = True
    # The functions that the model may call instead of writing the final message.
    functions: CallAlternatives = field(default_factory=lambda: CallAlternatives((), {}))
    has_structure: bool = True

    def around(self, structure: str) -> str:
        """Returns the grammar of the whole answer. `structure`: the grammar of the structure. Both grammars are in a
        form that `answer_grammar.named` accepts."""
        if self.begins is not None and self.begins is not Kind.REASONING:
            return structure
        # Each tag and each word is a separate terminal, because llguidance's lexer takes the longest match and never
        # returns to a shorter one.
        rule, rules = self.tags.rule, []
        channel, message = rule(CHANNEL), rule(MESSAGE)
        before = ""
        if self.begins is Kind.REASONING:
            before = "thoughts role "
        elif self.may_think and self.has_structure:
            before = f'({channel} "analysis" {message} thoughts role)? '
        if not self.has_structure:
            before += f"({channel} channel {message} thoughts role)* "
        if before:
            # The reader also finds tags that the model writes as text. Text with such tags could contain a message.
            up_to_end = self.tags.up_to(END, without=[tag for tag in TOKENS if tag != END])
            rules += [up_to_end.rstrip(), f'role: {rule(START)} "assistant"']
        rules.append(f'final: {channel} "final" json? {message}')
        rules.append(f'json: (" " | " "? {rule(CONSTRAIN)}) "json"')
        grammars, answer = named(structure, "structure"), "final @structure"
        if not self.has_structure:
            grammars, answer = [], "final TEXT"
            rules.append(f"TEXT: /(?s:.*)/ & ~/(?s:.*)({'|'.join(map(literal_regex, TOKENS))})(?s:.*)/")
        if alternatives := self.functions.alternatives:
            answer = f"({answer} | call)"
            calls = []
            for name, arguments in alternatives:
                to = f'" to={FUNCTIONS}" {name}'
                calls.append(f"({channel} channel {to} | {to} {channel} channel) json? {message} {arguments}")
            rules.append(f"call: {' | '.join(calls)}")
            rules.append('channel: "commentary" | "analysis"')
            rules.append(self.functions.name_rule.rstrip())
            grammars = [*grammars, *self.functions.grammars]
        lines = [f"start: {before}{answer}", *rules, ""]
        return json.dumps({"grammars": [{"lark_grammar": "\n".join(lines)}, *grammars]})
