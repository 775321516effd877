"""Calls that a grammar has the model write: nothing else can come, so that they hold for any model.

For a named function the whole text is its arguments. Where some call is required, it is an array of them:

    [{"name": "get_weather", "parameters": {"city": "Köln"}}]
"""

from __future__ import annotations

from collections.abc import Callable

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import rest_is_content
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions
from services.router.chat.parsers.json_call import read_calls, read_value


def named(name: str) -> Callable[[Feed, MessageBuilder, Functions], Reading[None]]:
    def read(feed: Feed, builder: MessageBuilder, _: Functions) -> Reading[None]:
        yield from feed.all(SPACE)
        if (yield from feed.peek()):
            builder.begin_call(name)
            yield from read_value(feed, builder.arguments)
            yield from rest_is_content(feed, builder)

    return read


def required(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
    feed.record()
    yield from feed.all(SPACE)
    is_call = yield from read_calls(feed, builder, functions)
    taken = feed.recorded()
    if not is_call:
        builder.content(taken)
    yield from rest_is_content(feed, builder)
