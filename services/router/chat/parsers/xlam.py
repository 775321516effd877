"""xLAM: a message that is a JSON array of calls. An array in a code block or after a tag can also follow content.

    [{"name": "get_weather", "arguments": {"city": "Köln"}}, {"name": "get_time", "arguments": {}}]

Only JSON that names one of the request's functions is a call.
"""

from __future__ import annotations

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import read_marked
from services.router.chat.parsers.feed import Feed, Reading
from services.router.chat.parsers.form import Functions, Objects, ToolForm
from services.router.chat.parsers.json_call import FENCE, read_call_or_calls, read_first_calls, skip_label, write_calls

# Maps each text that can precede calls to the text that closes the calls.
_MARKERS = {FENCE: FENCE, "<tool_call>": "</tool_call>", "[TOOL_CALLS]": "[/TOOL_CALLS]"}


def _read(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
    yield from read_first_calls(feed, builder, functions)
    yield from read_marked(feed, builder, _MARKERS, lambda marker: _read_marked_calls(feed, builder, functions, marker))


def _read_marked_calls(feed: Feed, builder: MessageBuilder, functions: Functions, marker: str) -> Reading[bool]:
    if marker == FENCE:
        yield from skip_label(feed)
    return (yield from read_call_or_calls(feed, builder, functions))


XLAM = ToolForm(_read, write_calls, shape=Objects(read_first_calls, "arguments"))
