"""Reader for answers that are either calls in the model's form or a structure. A grammar ensures that each answer is
one of the two."""

from __future__ import annotations

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import pass_through
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Marked, Objects, Read, ToolForm


def calls_or_content(form: ToolForm) -> Read:
    """Returns a reader for answers that are either calls or content. If an answer begins like a call of this form, it
    is read as calls; otherwise all of it is content. `form.shape` must not be None."""
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
