"""Llama's JSON form: one or more JSON calls in a row. A token can stand before the first call.

    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Köln"}}; {"name": "get_time", "parameters": {}}

Llama 3.1 to 3.3 have the token <|python_tag|>. Llama 4 has <|python_start|> and <|python_end|> instead. The model
writes these two around the calls, but its chat template writes them around the content before the calls.

Without the token, only JSON that names one of the request's functions is a call.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import content_until
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Objects, ToolForm
from services.router.chat.parsers.json_call import read_call


@dataclass(frozen=True, slots=True)
class LlamaJson:
    """Llama's JSON form of tool calls, with the special tokens of one generation of Llama models."""

    begin: str
    # None: the calls end with the message.
    end: str | None = None

    def form(self) -> ToolForm:
        tokens = (self.begin,) if self.end is None else (self.begin, self.end)
        return ToolForm(self.read, _write, tokens, shape=Objects(_read_first, "parameters", "; "))

    def read(self, feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
        yield from _read_first(feed, builder, functions)
        markers = (self.begin,) if self.end is None else (self.begin, self.end)
        while (yield from content_until(feed, builder, markers)):
            yield from self._skip_end(feed)
            if (yield from _read_objects(feed, builder, None)):
                yield from self._skip_end(feed)
            else:
                builder.no_call(feed.recorded())

    def _skip_end(self, feed: Feed) -> Reading[None]:
        yield from feed.all(SPACE)
        if self.end is not None and (yield from feed.word(self.end)):
            yield from feed.all(SPACE)


def _read_first(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
    """Reads the calls with which a message begins, if no token stands before them. JSON that is not a call is
    content."""
    feed.record()
    yield from feed.all(SPACE)
    if (yield from feed.peek()) == "{":
        if not (yield from _read_objects(feed, builder, functions)):
            builder.no_call(feed.recorded())
    else:
        feed.put_back(feed.recorded())


def _read_objects(feed: Feed, builder: MessageBuilder, names: Functions | None) -> Reading[bool]:
    """Reads calls in a row; text after the last call is content. The caller must have called `feed.record`. If there is
    no call, returns False, and the caller must end the record with `feed.recorded`."""
    is_first = True
    while (yield from read_call(feed, builder, names)):
        is_first = False
        feed.recorded()
        feed.record()
        yield from feed.all(SPACE)
        if (yield from feed.word(";")) or (yield from feed.word(",")):
            yield from feed.all(SPACE)
    if is_first:
        return False
    rest = feed.recorded()
    builder.no_call(rest if rest.strip("; ,\n") else "")
    return True


def _write(calls: list[tuple[str, str]]) -> str:
    return "; ".join(f'{{"name": "{name}", "parameters": {arguments}}}' for name, arguments in calls)


LLAMA3_JSON = LlamaJson("<|python_tag|>").form()
LLAMA4_JSON = LlamaJson("<|python_start|>", "<|python_end|>").form()
