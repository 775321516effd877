"""Answers that are calls in a model's form or another structure, as a grammar has the model write one or the other."""

from __future__ import annotations

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import pass_through
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Marked, Objects, Read, ToolForm


def calls_or_content(form: ToolForm) -> Read:
    """What begins as calls is nothing else, and what does not is content, whatever it says. `form`: with a shape."""
    if isinstance(form.shape, Objects):
        return form.shape.read
    assert isinstance(form.shape, Marked)
    marker = form.shape.marker

    def read(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
        feed.record()
        yield from feed.all(SPACE)
        builder.takes_content = not (yield from feed.word(marker))
        feed.put_back(feed.recorded())
        yield from pass_through(feed, builder) if builder.takes_content else form.read(feed, builder, functions)

    return read
