"""Hermes and Qwen: each call is JSON between tags, after any content.

Let me see.
<tool_call>
{"name": "get_weather", "arguments": {"city": "Köln"}}
</tool_call>
"""

from __future__ import annotations

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import content_until
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Marked, ToolForm
from services.router.chat.parsers.json_call import read_call

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _read(feed: Feed, builder: MessageBuilder, _: Functions) -> Reading[None]:
    while (yield from content_until(feed, builder, (_BEGIN,))):
        yield from feed.all(SPACE)
        if (yield from read_call(feed, builder)):
            yield from feed.all(SPACE)
            # One brace too many is a habit of small models.
            while (yield from feed.word("}")):
                yield from feed.all(SPACE)
            yield from feed.word(_END)
            feed.recorded()
        else:
            builder.no_call(feed.recorded())


def _write(calls: list[tuple[str, str]]) -> str:
    return "\n".join(f'{_BEGIN}\n{{"name": "{name}", "arguments": {arguments}}}\n{_END}' for name, arguments in calls)


HERMES = ToolForm(_read, _write, (_BEGIN, _END), shape=Marked(_BEGIN))
