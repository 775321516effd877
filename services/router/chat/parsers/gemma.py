"""FunctionGemma and Gemma 4: calls between special tokens. Arguments look like JSON, but keys have no quotes, and
a special token (<escape> or <|"|>) stands at each end of a string instead of a quotation mark.

    <start_function_call>call:get_weather{city:<escape>Köln<escape>,days:[1,2]}<end_function_call>
    <|tool_call>call:get_weather{city:<|"|>Köln<|"|>,days:[1,2]}<tool_call|>

FunctionGemma quotes values of any type, so the function's schema determines an argument's type. The model can leave out
commas. It can also leave out the ends of strings, arrays and objects directly before the token that ends the call.

A grammar makes calls of strict tools match their schemas. In these calls, quoted values are always strings.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

from services.router.chat.argument_schema import (
    ANY_TEXT,
    Definitions,
    NoValueError,
    ObjectSchema,
    UnsupportedKeywordError,
    assertions,
    flat,
    listed_values,
    of_type,
    text_regex,
    types_of,
)
from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import read_marked
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import CallsGrammar, Functions, Marked, Read, Schemas, ToolForm, WantedCalls
from services.router.chat.parsers.json_call import NAME_CHARACTERS, Emit
from services.router.chat.parsers.reasoning import ReasoningForm
from services.router.chat.parsers.rules import WORD_TERMINAL, Rules
from services.router.chat.parsers.schema_values import NUMBER, STRING, ArgumentTypes, ArgumentWriter, as_json
from services.router.chat.tools import TOOL_NAME
from services.router.grammar import literal_regex, quoted
from services.router.template import parsed_arguments
from shared.grammar import GrammarError

_CALL = "call:"
_KEY = re.compile(r"[^:,{}\[\]<]+")
_BARE_KEY = re.compile(r"\w+")
# Longest array that a schema of a strict tool can demand or allow explicitly: the grammar counts its items.
_MAX_COUNT = 1000
# Deepest nesting of a strict tool's schema. Python limits the depth of recursion.
_MAX_DEPTH = 64
_BARE = re.compile(r"[^,}\]<]+")
# Every token of these forms begins with "<".
_PLAIN = re.compile(r"[^<]+")
_CLOSERS = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    """Form of calls of FunctionGemma or Gemma 4, which differ only in their tokens."""

    begin: str
    end: str
    quote: str

    def form(self) -> ToolForm:
        return ToolForm(self.read, self.write, self._tokens, shape=Marked(self.begin, self))

    @property
    def _tokens(self) -> tuple[str, ...]:
        return (self.begin, self.end, self.quote)

    def read(self, feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
        return self._read(feed, builder, functions, ())

    def reader(self, strict: Schemas) -> Read:
        return lambda feed, builder, functions: self._read(feed, builder, functions, strict)

    def _read(self, feed: Feed, builder: MessageBuilder, functions: Functions, strict: Container[str]) -> Reading[None]:
        types = ArgumentTypes(functions)
        ends = {self.begin: self.end}
        yield from read_marked(feed, builder, ends, lambda _: self._read_call(feed, builder, types, strict))

    def _read_call(
        self, feed: Feed, builder: MessageBuilder, types: ArgumentTypes, strict: Container[str]
    ) -> Reading[bool]:
        if not (yield from feed.word(_CALL)):
            return False
        name = yield from feed.all(NAME_CHARACTERS)
        if not TOOL_NAME.fullmatch(name) or not (yield from feed.word("{")):
            return False
        # Both lists have one entry per open object or array: its closing bracket, and the text to write before its next
        # item.
        closers, before = ["}"], [""]
        types_here = STRING
        has_begun = False
        while closers:
            yield from feed.all(SPACE)
            character = yield from feed.peek()
            if not character:
                return has_begun
            if character == "<" and (yield from self._call_is_over(feed)):
                if not has_begun:
                    builder.begin_call(name)
                    builder.arguments("{")
                builder.arguments("".join(reversed(closers)))
                return True
            if character == "<" and feed.is_cut(*self._tokens):
                feed.take(feed.num_left)
                return has_begun
            if character == ",":
                feed.take()
                continue
            is_end = character in "}]"
            key = ""
            if not is_end and closers[-1] == "}":
                key = yield from self._read_key(feed)
                if not (yield from feed.word(":")):
                    # The text might end within a key. The incomplete key is dropped, and a call without any complete
                    # key is not a call.
                    if feed.is_cut(*self._tokens) and not (yield from self._call_is_over(feed)):
                        feed.take(feed.num_left)
                        return has_begun
                    if not key:
                        feed.take()
                        continue
            if not has_begun:
                builder.begin_call(name)
                builder.arguments("{")
                has_begun = True
            if is_end:
                feed.take()
                before.pop()
                builder.arguments(closers.pop())
                continue
            named = f"{json.dumps(key, ensure_ascii=False)}: " if closers[-1] == "}" else ""
            builder.arguments(f"{before[-1]}{named}")
            before[-1] = ", "
            if len(closers) == 1:
                types_here = STRING if name in strict else types.of(name, key)
            types_of_value = types_here if len(closers) == 1 else STRING
            opened = yield from self._read_value(feed, builder.arguments, types_of_value, is_strict=name in strict)
            if opened:
                closers.append(_CLOSERS[opened])
                before.append("")
        return True

    def _read_key(self, feed: Feed) -> Reading[str]:
        if (yield from feed.word(self.quote)):
            pieces: list[str] = []
            yield from self._read_string(feed, pieces.append)
            key = "".join(pieces)
        else:
            key = (yield from self._read_bare(feed, _KEY)).strip()
        yield from feed.all(SPACE)
        return key

    def _read_value(self, feed: Feed, emit: Emit, types: frozenset[str], *, is_strict: bool) -> Reading[str]:
        """Takes a value, emits it as JSON and returns an empty string. Of an object or array, takes, emits and returns
        only the opening bracket. `types`: JSON types that a quoted value can have."""
        yield from feed.all(SPACE)
        if (yield from feed.word(self.quote)):
            writer = ArgumentWriter(emit, types)
            yield from self._read_string(feed, writer.write)
            writer.close()
            return ""
        character = yield from feed.peek()
        if character and character in _CLOSERS:
            emit(feed.take())
            return character
        # The types of the schema are not needed here: the form of an unquoted value, such as a number, shows its type.
        word = (yield from self._read_bare(feed, _BARE)).strip()
        # The grammar allows only JSON's numbers here, however long, so they need no conversion.
        emit(word if is_strict and NUMBER.fullmatch(word) else as_json(word, frozenset()))
        return ""

    def _read_bare(self, feed: Feed, characters: re.Pattern[str]) -> Reading[str]:
        """Takes text that consists of `characters`, up to the next token of this form. A "<" that begins no such token
        belongs to the text."""
        pieces: list[str] = []
        while character := (yield from feed.peek()):
            if character == "<":
                if (yield from feed.ahead(self.quote)) or (yield from self._call_is_over(feed)):
                    break
                if feed.is_cut(*self._tokens):
                    break
                pieces.append(feed.take())
            elif piece := feed.here(characters):
                pieces.append(piece)
            else:
                break
        return "".join(pieces)

    def _read_string(self, feed: Feed, emit: Emit) -> Reading[None]:
        """Takes a string and the quote token that closes it. If the quote token is missing, the string ends before the
        call's end token (see `_string_is_over`)."""
        while character := (yield from feed.peek()):
            if character == "<":
                if (yield from feed.word(self.quote)) or (yield from self._string_is_over(feed)):
                    return
                if feed.is_cut(*self._tokens):
                    return
            emit(feed.here(_PLAIN) or feed.take())

    def _call_is_over(self, feed: Feed) -> Reading[bool]:
        return (yield from feed.ahead(self.end)) or (yield from feed.ahead(self.begin))

    def _string_is_over(self, feed: Feed) -> Reading[bool]:
        """Returns whether the call's end token comes next and ends the string and the call. It does so only if the text
        ends or another call begins after it. Otherwise the token is part of the string."""
        if not (yield from feed.word(self.end)):
            return False
        taken = self.end + (yield from feed.all(SPACE))
        is_over = not (yield from feed.peek()) or (yield from feed.ahead(self.begin)) or feed.is_cut(self.begin)
        feed.put_back(taken)
        return is_over

    def write(self, calls: list[tuple[str, str]]) -> str:
        return "".join(
            f"{self.begin}{_CALL}{name}{self._written(parsed_arguments(arguments))}{self.end}"
            for name, arguments in calls
        )

    def _written(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, list):
            return f"[{','.join(map(self._written, value))}]"
        if isinstance(value, dict):
            keys = {key: key if _BARE_KEY.fullmatch(key) else self._written(key) for key in value}
            return f"{{{','.join(f'{keys[key]}:{self._written(item)}' for key, item in value.items())}}}"
        return json.dumps(value)

    def grammar(self, wanted: WantedCalls) -> CallsGrammar:
        """As OwnArguments.grammar. Arguments of functions that are not strict can have any values."""
        values = _ValueRules(self, wanted.expression)
        calls = [f"name {values.any_object}"] if wanted.names else []
        for name, schema in wanted.strict.items():
            calls.append(f"{quoted(name)} {values.object(ObjectSchema.of_tool(schema))}")
        one = values.rules.rule(f"({' | '.join(calls)}) {wanted.expression(self.end)}")
        further = f" ({wanted.expression(self.begin + _CALL)} {one})*" if wanted.several else ""
        expression = f"{wanted.expression(_CALL)} {one}{further} space"
        return CallsGrammar(expression, values.rules.text, values.rules.schemas)

    def literal_key(self, name: str) -> str:
        return name if _BARE_KEY.fullmatch(name) else self.literal(name)

    def literal(self, value: Any) -> str:
        """Returns the text of a value. Raises GrammarError if a string in it contains a token of this form."""
        if any(token in text for text in _strings(value) for token in self._tokens):
            raise GrammarError(f"this model's form of tool calls cannot write {json.dumps(value)[:64]}")
        return self._written(value)


def _strings(value: Any) -> Iterator[str]:
    """Yields all strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value:
            yield from _strings(item)
        if isinstance(value, dict):
            yield from _strings(list(value.values()))


class _ValueRules:
    """Grammar rules for objects and for the values in them."""

    def __init__(self, form: GemmaCalls, expression: Callable[[str], str]) -> None:
        self.rules = Rules()
        self._form = form
        self._expression = expression
        # Names of the rules for values. A schema can refer to itself.
        self._names: dict[tuple[Definitions, str], str] = {}
        self._depth = 0

    @functools.cached_property
    def _any(self) -> tuple[str, str]:
        """Names of the rules for any value and for any object."""
        name = self.rules.reserve()
        word = self.rules.terminal(r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null/")
        pair = self.rules.rule(f'({self.rules.terminal(WORD_TERMINAL)} | {self._string(ANY_TEXT)}) ":" {name}')
        any_object = self.rules.rule(f'"{{" ({pair} ("," {pair})*)? "}}"')
        self.rules.define(name, f'{self._string(ANY_TEXT)} | {any_object} | "[" ({name} ("," {name})*)? "]" | {word}')
        return name, any_object

    @property
    def any_object(self) -> str:
        return self._any[1]

    def object(self, schema: ObjectSchema) -> str:
        """Returns an expression for an object. Its members have the order of the schema."""
        members = self.rules.members(
            schema,
            lambda name: self._expression(f"{self._form.literal_key(name)}:"),
            between='":"',
            comma='","',
            end='"}"',
            value=self._value,
        )
        return f'"{{" {members}'

    def _value(self, schema: Any, definitions: Definitions) -> str:
        """Returns the name of the rule for values that match a schema. Raises GrammarError."""
        found = assertions(schema)
        if not found:
            return self._any[0]
        key = (definitions, json.dumps(found))
        if key not in self._names:
            if self._depth > _MAX_DEPTH:
                raise GrammarError("the schema is nested too deeply for this model's form of tool calls")
            self._names[key] = self.rules.reserve()
            self._depth += 1
            try:
                self.rules.define(self._names[key], " | ".join(self._alternatives(found, definitions)))
            except NoValueError:
                del self._names[key]
                raise
            finally:
                self._depth -= 1
        return self._names[key]

    def _alternatives(self, schema: Any, definitions: Definitions) -> list[str]:
        """Returns at least one expression. Raises NoValueError if no value matches the schema."""
        found = flat(schema, definitions)
        found_any = found.pop("anyOf", None)
        if found_any is not None:
            if found:
                raise UnsupportedKeywordError("anyOf")
            alternatives = []
            for one in found_any:
                with contextlib.suppress(NoValueError):
                    alternatives.append(self._value(one, definitions))
        elif (values := listed_values(found)) is not None:
            alternatives = [self._expression(self._form.literal(value)) for value in values]
        else:
            alternatives = [self._of_type(name, of_type(found, name), definitions) for name in types_of(found)]
        if not alternatives:
            raise NoValueError
        return alternatives

    def _of_type(self, name: str, keywords: dict[str, Any], definitions: Definitions) -> str:
        """Returns an expression for values of one type. `keywords`: those that apply to this type."""
        match name:
            case "null":
                return '"null"'
            case "boolean":
                return '"true" | "false"'
            case "string":
                return self._string(text_regex(keywords))
            case "array":
                return self._array(keywords, definitions)
            case "object":
                return self.object(ObjectSchema.of({"type": name, **keywords}, definitions))
        return self.rules.json({"type": name, **keywords}, definitions)

    def _array(self, keywords: dict[str, Any], definitions: Definitions) -> str:
        least, most = keywords.pop("minItems", 0), keywords.pop("maxItems", None)
        items = keywords.pop("items", True)
        for keyword in keywords:
            raise UnsupportedKeywordError(keyword)
        if max(least, most or 0) > _MAX_COUNT:
            raise UnsupportedKeywordError("maxItems" if most and most > _MAX_COUNT else "minItems")
        if most is not None and most < least:
            raise NoValueError
        try:
            item = "" if most == 0 else self._value(items, definitions)
        except NoValueError:
            if least:
                raise
            item = ""
        if not item:
            return '"[" "]"'
        further = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        listed = item if most == 1 else f'{item} ("," {item}){further}'
        return f'"[" {listed} "]"' if least else f'"[" ({listed})? "]"'

    def _string(self, regex: str) -> str:
        """Returns an expression for a string. It ends with the quote token, or with that token's text. It cannot
        contain the text of the token that ends the call, because the parser might end the string there."""
        quote, end = literal_regex(self._form.quote), literal_regex(self._form.end)
        spelled = self.rules.lazy(f"/({regex}){quote}/ & ~/(?s:.*)({quote}(?s:.+)|{end}(?s:.*))/")
        text = self.rules.terminal(f"/{regex}/ & ~/(?s:.*)({quote}|{end})(?s:.*)/")
        token = self._expression(self._form.quote)
        return self.rules.rule(f"{token} ({spelled} | {text} {token})")


FUNCTIONGEMMA = GemmaCalls("<start_function_call>", "<end_function_call>", "<escape>").form()
GEMMA4 = GemmaCalls("<|tool_call>", "<tool_call|>", '<|"|>').form()
GEMMA4_THOUGHT = ReasoningForm("<|channel>", "<channel|>", label="thought\n")
