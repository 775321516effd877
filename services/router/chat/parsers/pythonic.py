"""The tool calls of Llama 3.2, Llama 4 and other models with similar training: the message is a Python list of calls.

    [get_weather(city="Köln", days=[1, 2]), get_time()]

Llama 4 puts the list between two tokens, <|python_start|> and <|python_end|>. Without them, the list must begin with a
call of one of the request's functions. Once an argument is complete, it is parsed as a Python literal (of at most
4,096 characters, unless it is a single string) or as JSON. An argument that is neither becomes a string.

A grammar makes calls of strict tools match their schemas. Their arguments have the order of the schema. Each is JSON, a
string in single quotes without escapes, or one of Python's words None, True and False.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from services.router.chat.argument_schema import (
    ANY_OBJECT,
    Definitions,
    ObjectSchema,
    TextValue,
    UnsupportedKeywordError,
    assertions,
    flat,
    json_words,
    listed_values,
)
from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import content_until
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import (
    CallsGrammar,
    Functions,
    Listed,
    Read,
    Schemas,
    ToolForm,
    WantedCalls,
)
from services.router.chat.parsers.json_call import NAME_CHARACTERS, Emit, read_value
from services.router.chat.parsers.literals import literal_json
from services.router.chat.parsers.rules import Rules
from services.router.chat.parsers.schema_values import any_json
from services.router.chat.tools import TOOL_NAME
from services.router.grammar import quoted
from services.router.template import parsed_arguments
from shared.grammar import GrammarError

_START, _END = "<|python_start|>", "<|python_end|>"
_WORD = re.compile(r"\w+")
# The name of an argument. It has more than \w: Python's does not include accents that are characters of their own,
# which many languages need.
_NAME = re.compile(r"[^=()\[\]\s,]+")
_WORDS = {"None": "null", "True": "true", "False": "false"}
_PYTHON_WORDS = {json_word: word for word, json_word in _WORDS.items()}
_SCALAR = re.compile(r"[^\s,)]+")
_QUOTED = re.compile(r"[^']+")
_PLAIN = re.compile(r"[^\"'()\[\]{},]+")
_IN_STRING = {'"': re.compile(r'[^"\\]+'), "'": re.compile(r"[^'\\]+")}


def _read(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
    feed.record()
    yield from feed.all(SPACE)
    if (yield from feed.peek()) != "[":
        feed.put_back(feed.recorded())
    elif not (yield from _read_list(feed, builder, functions)):
        builder.no_call(feed.recorded())
    while (yield from content_until(feed, builder, (_START,))):
        yield from feed.all(SPACE)
        if (yield from _read_list(feed, builder, None)):
            yield from feed.all(SPACE)
            yield from feed.word(_END)
        else:
            builder.no_call(feed.recorded())


def _read_list(feed: Feed, builder: MessageBuilder, names: Container[str] | None) -> Reading[bool]:
    """Reads a list of calls; text after the last valid call is content. The caller must have called `feed.record`. If
    the list does not begin with a call, returns False, and the caller must end the record with `feed.recorded`."""
    if not (yield from feed.word("[")):
        return False
    yield from feed.all(SPACE)
    if not (yield from _read_call(feed, builder, names)):
        return False
    while True:
        feed.recorded()
        feed.record()
        yield from feed.all(SPACE)
        if not (yield from feed.word(",")):
            yield from feed.word("]")
            feed.recorded()
            return True
        yield from feed.all(SPACE)
        if not (yield from _read_call(feed, builder, names)):
            builder.no_call(feed.recorded())
            return True


def _read_call(feed: Feed, builder: MessageBuilder, names: Container[str] | None) -> Reading[bool]:
    name = yield from feed.all(NAME_CHARACTERS)
    if not TOOL_NAME.fullmatch(name) or (names is not None and name not in names) or not (yield from feed.word("(")):
        return False
    separator = "{"
    while True:
        yield from feed.all(SPACE)
        if (yield from feed.word(")")):
            if separator == "{":
                builder.begin_call(name)
                builder.arguments("{")
            builder.arguments("}")
            return True
        key = yield from feed.all(_NAME)
        yield from feed.all(SPACE)
        if not _is_name(key) or not (yield from feed.word("=")):
            return _broken_off(feed, builder, separator)
        if separator == "{":
            builder.begin_call(name)
        builder.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        separator = ", "
        value = yield from _read_value(feed)
        builder.arguments(_as_json(value.strip()))
        feed.recorded()
        feed.record()
        if not (yield from feed.word(",")) and (yield from feed.peek()) != ")":
            return _broken_off(feed, builder, separator)


def _broken_off(feed: Feed, builder: MessageBuilder, separator: str) -> bool:
    """Ends a call whose text is malformed: closes its arguments and writes the text since its last argument as content.
    Returns False, and writes nothing, if the call has no argument yet."""
    if separator == "{":
        return False
    builder.arguments("}")
    builder.no_call(feed.recorded())
    feed.record()
    return True


def _read_value(feed: Feed) -> Reading[str]:
    """Takes and returns the source text of one argument's value, up to the comma or closing bracket that follows the
    value."""
    pieces: list[str] = []
    depth = 0
    while character := (yield from feed.peek()):
        if character in _IN_STRING:
            yield from _read_string(feed, pieces, character)
            continue
        if character in "([{":
            depth += 1
        elif character in ")]}":
            if not depth:
                break
            depth -= 1
        elif character == "," and not depth:
            break
        pieces.append(feed.here(_PLAIN) or feed.take())
    return "".join(pieces)


def _read_string(feed: Feed, pieces: list[str], quote: str) -> Reading[None]:
    pieces.append(feed.take())
    while character := (yield from feed.peek()):
        if character == "\\":
            pieces.append(feed.take())
            if not (yield from feed.peek()):
                return
            pieces.append(feed.take())
        elif character == quote:
            pieces.append(feed.take())
            return
        else:
            pieces.append(feed.here(_IN_STRING[quote]))


def _as_json(source: str) -> str:
    """Converts `source` to JSON: if it is a Python literal, its value; if it is JSON, `source` itself; otherwise
    `source` as a JSON string."""
    return literal_json(source) or any_json(source) or json.dumps(source, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class _Exact:
    """The grammar of strict calls, and the reader for them (OwnArguments)."""

    def grammar(self, wanted: WantedCalls) -> CallsGrammar:
        """As OwnArguments.grammar. Arguments of functions that are not strict can have any values."""
        arguments = _ArgumentRules()
        calls = [
            f"{quoted(f'{name}(')} {arguments.of(ObjectSchema.of_tool(schema))}"
            for name, schema in wanted.strict.items()
        ]
        if wanted.names:
            calls.append(f'name "(" {arguments.of(ANY_OBJECT)}')
        one = arguments.rules.rule(" | ".join(calls))
        further = f" ({arguments.comma} {one})*" if wanted.several else ""
        return CallsGrammar(f'"[" {one}{further} "]"', arguments.rules.text, arguments.rules.schemas)

    def reader(self, strict: Schemas) -> Read:
        return _read_exactly


class _ArgumentRules:
    """Grammar rules for the arguments of calls."""

    def __init__(self) -> None:
        self.rules = Rules()
        self.comma = self.rules.terminal("/, ?/")
        # Names of the rules for values. Many arguments can refer to the same long list of values.
        self._names: dict[tuple[Definitions, str], str] = {}

    def of(self, schema: ObjectSchema) -> str:
        """Returns an expression for a call's arguments and the parenthesis that ends the call. Raises GrammarError."""
        return self.rules.members(schema, _named, between='"="', comma=self.comma, end='")"', value=self._value)

    def _value(self, schema: Any, definitions: Definitions) -> str:
        """Returns the name of the rule for values that match a schema."""
        found = assertions(schema)
        key = (definitions, json.dumps(found))
        if key not in self._names:
            self._names[key] = self.rules.rule(" | ".join(self._alternatives(found, definitions)))
        return self._names[key]

    def _alternatives(self, schema: Any, definitions: Definitions) -> list[str]:
        with contextlib.suppress(UnsupportedKeywordError):
            listed_values(flat(schema, definitions))  # raises NoValueError if the list has no value of the type
        text = TextValue.of(schema, definitions, "'")
        alternatives = [self.rules.json(schema, definitions)]
        if text is not None and text.types == {"string"}:
            alternatives.append(self.rules.terminal(rf"/'({text.regex})'/ & /'[^'\\\n]*'/"))
        alternatives += (f'"{_PYTHON_WORDS[word]}"' for word in json_words(schema, definitions))
        return alternatives


def _is_name(text: str) -> bool:
    return bool(_WORD.fullmatch(text)) or text.isidentifier()


def _named(name: str) -> str:
    if not _is_name(name):
        raise GrammarError(f"this model's form of tool calls cannot write the argument {name[:64]!r}")
    return quoted(f"{name}=")


def _read_exactly(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
    """Reads calls of the grammar. A call that was cut before its first argument is left out."""
    yield from feed.all(SPACE)
    yield from feed.word("[")
    while (yield from _read_exact_call(feed, builder)) and (yield from feed.word(",")):
        yield from feed.all(SPACE)
    while (yield from feed.peek()):  # the bracket, or the rest of a call that was cut
        feed.take(feed.num_left)


def _read_exact_call(feed: Feed, builder: MessageBuilder) -> Reading[bool]:
    """Returns whether the call is complete."""
    name = yield from feed.all(NAME_CHARACTERS)
    if not (yield from feed.word("(")):
        return False
    before = "{"
    while not (yield from feed.word(")")):
        key = yield from feed.all(_NAME)
        if not (yield from feed.word("=")):
            return False
        if before == "{":
            builder.begin_call(name)
        builder.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        before = ", "
        yield from _read_exact_value(feed, builder.arguments)
        yield from feed.all(SPACE)
        yield from feed.word(",")
        yield from feed.all(SPACE)
    if before == "{":
        builder.begin_call(name)
        builder.arguments("{")
    builder.arguments("}")
    return True


def _read_exact_value(feed: Feed, emit: Emit) -> Reading[None]:
    """Takes the value of one argument, and emits it as JSON as it arrives."""
    if (yield from feed.word("'")):
        emit('"')
        while (yield from feed.peek()) and (piece := feed.here(_QUOTED)):
            emit(json.dumps(piece, ensure_ascii=False)[1:-1])
        if (yield from feed.word("'")):
            emit('"')
    elif word := (yield from feed.one_of(_WORDS)):
        emit(_WORDS[word])
    elif (yield from feed.peek()) in ('"', "{", "["):
        yield from read_value(feed, emit)
    else:
        emit((yield from feed.all(_SCALAR)))


def _write(calls: list[tuple[str, str]]) -> str:
    return f"[{', '.join(_call_source(name, arguments) for name, arguments in calls)}]"


def _call_source(name: str, arguments: str) -> str:
    values = parsed_arguments(arguments)
    return f"{name}({', '.join(f'{key}={_literal(value)}' for key, value in values.items())})"


def _literal(value: Any) -> str:
    """Returns JSON, or Python's word for None, True or False; the grammar of strict calls accepts both."""
    source = json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")  # llguidance wants this one escaped
    return _PYTHON_WORDS.get(source, source)


PYTHONIC = ToolForm(_read, _write, (_START, _END), shape=Listed(_Exact()))
