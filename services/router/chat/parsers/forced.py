"""Calls that a grammar forces the model to write, in vLLM's form. They work with every model.

For a named function, the whole text is the function's arguments. For a required call, the text is an array of calls:
    [{"name": "get_weather", "parameters": {"city": "Köln"}}]

The grammar allows nothing else. Text that the parser cannot read as a call is therefore the start of a truncated call,
and is dropped.
"""

from __future__ import annotations

import re

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Read
from services.router.chat.parsers.json_call import read_call, read_value
from services.router.chat.tools import ToolChoice, ToolMode

_ANY = re.compile(r".+", re.DOTALL)


def forced_calls(choice: ToolChoice) -> Read | None:
    """Returns a reader for the calls that a request forces; None if it forces none."""
    match choice.mode:
        case ToolMode.REQUIRED:
            return required
        case ToolMode.NAMED:
            return named(choice.name)
        case _:
            return None


def named(name: str) -> Read:
    def read(feed: Feed, builder: MessageBuilder, _: Functions) -> Reading[None]:
        yield from feed.all(SPACE)
        if (yield from feed.peek()):
            builder.begin_call(name)
            yield from read_value(feed, builder.arguments)
            yield from _drop_rest(feed)

    return read


def required(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
    yield from feed.all(SPACE)
    separator = "["
    while (yield from feed.word(separator)):
        yield from feed.all(SPACE)
        if not (yield from read_call(feed, builder, functions)):
            break
        yield from feed.all(SPACE)
        separator = ","
    yield from _drop_rest(feed)


def _drop_rest(feed: Feed) -> Reading[None]:
    while (yield from feed.peek()):
        feed.here(_ANY)
