"""Hunyuan A13B: a JSON array of calls between tags, after any content.

    <tool_calls>[{"name": "get_weather", "arguments": {"city": "Köln"}}]</tool_calls>

In the chat template, an answer without calls begins with 助手： ("assistant:"). This prefix is not part of the content.
"""

from __future__ import annotations

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import read_marked
from services.router.chat.parsers.feed import Feed, Reading
from services.router.chat.parsers.form import Functions, Marked, ToolForm
from services.router.chat.parsers.json_call import read_call_or_calls, write_calls

_BEGIN, _END = "<tool_calls>", "</tool_calls>"
_ASSISTANT = "助手："


def _read(feed: Feed, builder: MessageBuilder, _: Functions) -> Reading[None]:
    yield from feed.word(_ASSISTANT)
    yield from read_marked(feed, builder, {_BEGIN: _END}, lambda _: read_call_or_calls(feed, builder))


def _write(calls: list[tuple[str, str]]) -> str:
    return f"{_BEGIN}{write_calls(calls)}{_END}"


HUNYUAN_A13B = ToolForm(_read, _write, (_BEGIN, _END), shape=Marked(_BEGIN))
