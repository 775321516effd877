"""Hermes and Qwen: each call is JSON between tags, after any content.

Let me see.
<tool_call>
{"name": "get_weather", "arguments": {"city": "Köln"}}
</tool_call>
"""

from __future__ import annotations

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import read_marked
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Marked, ToolForm
from services.router.chat.parsers.json_call import read_call, write_call

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _read(feed: Feed, builder: MessageBuilder, _: Functions) -> Reading[None]:
    yield from read_marked(feed, builder, {_BEGIN: _END}, lambda _: _read_one(feed, builder))


def _read_one(feed: Feed, builder: MessageBuilder) -> Reading[bool]:
    is_call = yield from read_call(feed, builder)
    if is_call:
        yield from feed.all(SPACE)
        # Small models often write one brace too many.
        while (yield from feed.word("}")):
            yield from feed.all(SPACE)
    return is_call


def _write(calls: list[tuple[str, str]]) -> str:
    return "\n".join(f"{_BEGIN}\n{write_call(name, arguments)}\n{_END}" for name, arguments in calls)


HERMES = ToolForm(_read, _write, (_BEGIN, _END), shape=Marked(_BEGIN))
