"""Calls written as JSON objects: a name, and arguments that are streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions
from services.router.chat.tools import TOOL_NAME

# Matches a name of any length; TOOL_NAME then decides whether it is valid.
NAME_CHARACTERS = re.compile(r"[a-zA-Z0-9_-]+")
# Begins and ends a code block.
FENCE = "```"
# Keys under which models write the arguments of a call.
ARGUMENTS = ("arguments", "parameters")

_IN_STRING = re.compile(r'[^"\\]+')
_OUT_OF_STRING = re.compile(r'[^"{}\[\]]+')
_SCALAR = re.compile(r"[^\s,\]}]+")

Emit = Callable[[str], None]


def read_call(feed: Feed, builder: MessageBuilder, names: Container[str] | None = None) -> Reading[bool]:
    """Takes an object with a name and arguments, and writes it as a call. The keys can have any order. The closing
    brace can be missing, because models forget it. Returns False if the object is not a call, or calls a function that
    is not in `names`. In this case, nothing has been written, but part of the text can have been taken."""
    if not (yield from feed.word("{")):
        return False
    name = ""
    early: list[str] = []
    has_begun = False
    while True:
        yield from feed.all(SPACE)
        key = yield from _read_key(feed)
        if key is None:
            return has_begun
        if key == "name" and not name:
            name = yield from _read_name(feed)
            if not name or (names is not None and name not in names):
                return False
        elif key in ARGUMENTS and not has_begun and not early:
            # If the text ends before the arguments, it is not a call.
            if not (yield from feed.peek()):
                return False
            if name:
                builder.begin_call(name)
                has_begun = True
            yield from _read_arguments(feed, builder.arguments if name else early.append)
        else:
            yield from read_value(feed, _ignore)
        if name and early and not has_begun:
            builder.begin_call(name)
            builder.arguments("".join(early))
            has_begun = True
        yield from feed.all(SPACE)
        if (yield from feed.word(",")):
            continue
        is_closed = yield from feed.word("}")
        if is_closed and name and not has_begun:
            builder.begin_call(name)
            builder.arguments("{}")
            has_begun = True
        return has_begun


def read_calls(feed: Feed, builder: MessageBuilder, names: Container[str] | None = None) -> Reading[bool]:
    """Takes an array of calls. The caller must have called `feed.record`. Returns False if the array does not begin
    with a call. If a later item is not a call, the array ends before it, and the item is content."""
    if not (yield from feed.word("[")):
        return False
    yield from feed.all(SPACE)
    if not (yield from read_call(feed, builder, names)):
        return False
    while True:
        feed.recorded()
        feed.record()
        yield from feed.all(SPACE)
        if not (yield from feed.word(",")):
            yield from feed.word("]")
            return True
        yield from feed.all(SPACE)
        if not (yield from read_call(feed, builder, names)):
            builder.no_call(feed.recorded())
            feed.record()
            return True


def read_call_or_calls(feed: Feed, builder: MessageBuilder, names: Container[str] | None = None) -> Reading[bool]:
    """Takes one call or an array of calls, as `read_call` and `read_calls` do. The caller must have called
    `feed.record`."""
    if (yield from feed.peek()) == "[":
        return (yield from read_calls(feed, builder, names))
    return (yield from read_call(feed, builder, names))


def read_first_calls(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
    """Takes the calls of the request's functions at the start of a message. Any other JSON there is content."""
    feed.record()
    yield from feed.all(SPACE)
    character = yield from feed.peek()
    if not character or character not in "[{":
        feed.put_back(feed.recorded())
    elif (yield from read_call_or_calls(feed, builder, functions)):
        feed.recorded()
    else:
        builder.no_call(feed.recorded())


def skip_label(feed: Feed) -> Reading[None]:
    """Takes the optional label between a code block's fence and the JSON."""
    yield from feed.word("json")
    yield from feed.all(SPACE)


def write_call(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "arguments": {arguments}}}'


def write_calls(calls: list[tuple[str, str]]) -> str:
    """Returns the calls as a JSON array."""
    return f"[{', '.join(write_call(name, arguments) for name, arguments in calls)}]"


def read_value(feed: Feed, emit: Emit) -> Reading[None]:
    """Takes one JSON value and emits its characters as they arrive. Only matches brackets and quotes to find the
    value's end; does not check the rest of JSON's grammar."""
    character = yield from feed.peek()
    if character == '"':
        yield from _read_string(feed, emit)
    elif character and character in "{[":
        depth = 0
        while character := (yield from feed.peek()):
            if character == '"':
                yield from _read_string(feed, emit)
            elif character in "{[":
                depth += 1
                emit(feed.take())
            elif character in "}]":
                depth -= 1
                emit(feed.take())
                if not depth:
                    return
            else:
                emit(feed.here(_OUT_OF_STRING))
    else:
        while (yield from feed.peek()) and (piece := feed.here(_SCALAR)):
            emit(piece)


def _read_string(feed: Feed, emit: Emit) -> Reading[None]:
    emit(feed.take())
    while character := (yield from feed.peek()):
        if character == '"':
            emit(feed.take())
            return
        if character == "\\":
            emit(feed.take())
            if not (yield from feed.peek()):
                return
            emit(feed.take())
        else:
            emit(feed.here(_IN_STRING))


def _read_key(feed: Feed) -> Reading[str | None]:
    """Takes a key, its colon and the space around them, and returns the key; None if there is no key."""
    if (yield from feed.peek()) != '"':
        return None
    pieces: list[str] = []
    yield from _read_string(feed, pieces.append)
    yield from feed.all(SPACE)
    if not (yield from feed.word(":")):
        return None
    yield from feed.all(SPACE)
    return "".join(pieces)[1:-1]


def _read_name(feed: Feed) -> Reading[str]:
    """Takes a string and returns it if it is a valid function name; otherwise returns an empty string."""
    if not (yield from feed.word('"')):
        return ""
    name = yield from feed.all(NAME_CHARACTERS)
    return name if TOOL_NAME.fullmatch(name) and (yield from feed.word('"')) else ""


def _read_arguments(feed: Feed, emit: Emit) -> Reading[None]:
    """Takes the value of a call's arguments and emits it. If the value is a string that contains a JSON object, as some
    models write it, emits the object. For null or an empty string, emits an empty object."""
    character = yield from feed.peek()
    if character and character in "{[":
        yield from read_value(feed, emit)
        return
    pieces: list[str] = []
    yield from read_value(feed, pieces.append)
    emit(_unwrapped("".join(pieces)))


def _unwrapped(text: str) -> str:
    if text in ("null", '""', ""):
        return "{}"
    try:
        inner = json.loads(text)
        if isinstance(inner, str) and isinstance(json.loads(inner), dict):
            inner.encode()
            return inner
    except (ValueError, RecursionError):
        pass
    return text


def _ignore(_: str) -> None:
    pass
