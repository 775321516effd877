"""Quire's own form, for models that have none: the whole message is JSON, one call or an array of calls. A code block
around it is optional.

    [{"name": "get_weather", "arguments": {"city": "Köln"}}, {"name": "get_time", "arguments": {}}]

Only JSON that names one of the request's functions is a call, because a message can contain other JSON.
"""

from __future__ import annotations

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import rest_is_content
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Objects, ToolForm
from services.router.chat.parsers.json_call import FENCE, read_call_or_calls, skip_label, write_call, write_calls


def _read(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
    feed.record()
    yield from feed.all(SPACE)
    is_fenced = yield from feed.word(FENCE)
    if is_fenced:
        yield from skip_label(feed)
    is_call = yield from read_call_or_calls(feed, builder, functions)
    taken = feed.recorded()
    if not is_call:
        builder.content(taken)
    elif is_fenced:
        yield from feed.all(SPACE)
        yield from feed.word(FENCE)
    yield from rest_is_content(feed, builder)


def _write(calls: list[tuple[str, str]]) -> str:
    return write_call(*calls[0]) if len(calls) == 1 else write_calls(calls)


PLAIN = ToolForm(_read, _write, shape=Objects(_read, "arguments"))
