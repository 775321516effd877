"""InternLM 2 and 2.5: each call is JSON between tokens, after any content.

    <|action_start|><|plugin|>
    {"name": "get_weather", "arguments": {"city": "Köln"}}<|action_end|>

The key of the arguments can also be `parameters`. If another token stands in place of <|plugin|>, the model writes code
instead of a call, and the text stays content.
"""

from __future__ import annotations

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import read_marked
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Marked, ToolForm
from services.router.chat.parsers.json_call import read_call, write_call

_BEGIN, _PLUGIN, _END = "<|action_start|>", "<|plugin|>", "<|action_end|>"


def _read(feed: Feed, builder: MessageBuilder, _: Functions) -> Reading[None]:
    yield from read_marked(feed, builder, {_BEGIN: _END}, lambda _: _read_plugin(feed, builder))


def _read_plugin(feed: Feed, builder: MessageBuilder) -> Reading[bool]:
    if not (yield from feed.word(_PLUGIN)):
        return False
    yield from feed.all(SPACE)
    return (yield from read_call(feed, builder))


def _write(calls: list[tuple[str, str]]) -> str:
    return "".join(f"{_BEGIN}{_PLUGIN}\n{write_call(name, arguments)}{_END}" for name, arguments in calls)


INTERNLM = ToolForm(_read, _write, (_BEGIN, _PLUGIN, _END), shape=Marked(_BEGIN))
