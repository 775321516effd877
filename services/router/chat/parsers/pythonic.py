"""The tool calls of Llama 3.2, Llama 4 and other models with similar training: the message is a Python list of calls.

    [get_weather(city="Köln", days=[1, 2]), get_time()]

Llama 4 puts the list between two tokens, <|python_start|> and <|python_end|>. Without them, the list must begin with a
call of one of the request's functions. Once an argument is complete, it is parsed as a Python literal (of at most
4,096 characters, unless it is a single string) or as JSON. An argument that is neither becomes a string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import content_until
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, ToolForm
from services.router.chat.parsers.json_call import NAME_CHARACTERS
from services.router.chat.parsers.literals import literal_json
from services.router.chat.parsers.schema_values import any_json
from services.router.chat.tools import TOOL_NAME
from services.router.template import parsed_arguments

_START, _END = "<|python_start|>", "<|python_end|>"
_WORD = re.compile(r"\w+")
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
        key = yield from feed.all(_WORD)
        yield from feed.all(SPACE)
        if not key or not (yield from feed.word("=")):
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


def _write(calls: list[tuple[str, str]]) -> str:
    return f"[{', '.join(_call_source(name, arguments) for name, arguments in calls)}]"


def _call_source(name: str, arguments: str) -> str:
    values = parsed_arguments(arguments)
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"


PYTHONIC = ToolForm(_read, _write, (_START, _END))
