"""InternLM 2 and 2.5: each call is JSON between tokens, after any content.

    <|action_start|><|plugin|>
    {"name": "get_weather", "arguments": {"city": "Köln"}}<|action_end|>

The model may call the arguments `parameters`. Another token than <|plugin|> begins code, which stays content.
"""

from __future__ import annotations

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import content_until
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Marked, ToolForm
from services.router.chat.parsers.json_call import read_call, write_call

_BEGIN, _PLUGIN, _END = "<|action_start|>", "<|plugin|>", "<|action_end|>"


def _read(feed: Feed, builder: MessageBuilder, _: Functions) -> Reading[None]:
    while (yield from content_until(feed, builder, (_BEGIN,))):
        yield from feed.all(SPACE)
        is_call = yield from feed.word(_PLUGIN)
        yield from feed.all(SPACE)
        if is_call and (yield from read_call(feed, builder)):
            feed.recorded()
            yield from feed.all(SPACE)
            yield from feed.word(_END)
        else:
            builder.no_call(feed.recorded())


def _write(calls: list[tuple[str, str]]) -> str:
    return "".join(f"{_BEGIN}{_PLUGIN}\n{write_call(name, arguments)}{_END}" for name, arguments in calls)


INTERNLM = ToolForm(_read, _write, (_BEGIN, _PLUGIN, _END), shape=Marked(_BEGIN))
