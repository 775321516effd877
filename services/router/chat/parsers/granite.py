"""Granite 3: a JSON array of calls after a token. Some versions write a tag instead of the token.

    <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Köln"}}, {"name": "get_time", "arguments": {}}]

A message that begins with JSON, without the token or tag, is a call only if it names one of the request's functions.

Granite 3.2 introduces its reasoning and its answer with phrases, which can also begin with "Here's":

    Here is my thought process: Köln is in Germany. Here is my response: The weather there is fine.
"""

from __future__ import annotations

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import read_marked
from services.router.chat.parsers.feed import Feed, Reading
from services.router.chat.parsers.form import Functions, Marked, ToolForm
from services.router.chat.parsers.json_call import read_call_or_calls, read_first_calls, write_calls
from services.router.chat.parsers.reasoning import ReasoningForm

_TOKEN, _TAG = "<|tool_call|>", "<tool_call>"
_TAG_END = "</tool_call>"
_ENDS = {_TOKEN: _TAG_END, _TAG: _TAG_END}


def _read(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
    yield from read_first_calls(feed, builder, functions)
    yield from read_marked(feed, builder, _ENDS, lambda _: read_call_or_calls(feed, builder))


def _write(calls: list[tuple[str, str]]) -> str:
    return f"{_TOKEN}{write_calls(calls)}"


GRANITE = ToolForm(_read, _write, (_TOKEN, _TAG, _TAG_END), shape=Marked(_TOKEN))
GRANITE_THOUGHT = ReasoningForm(
    "Here is my thought process:",
    "Here is my response:",
    other_begins=("Here's my thought process:",),
    other_ends=("Here's my response:",),
)
