"""Readers for answers that a grammar constrains: calls in the model's form or a structure; text, or text and calls."""

from __future__ import annotations

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import content_until, pass_through
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Listed, Marked, Objects, Read, Schemas, ToolForm

_NOTHING_STRICT: Schemas = {}


def calls_or_content(form: ToolForm, schemas: Schemas = _NOTHING_STRICT) -> Read:
    """Returns a reader for answers that are either calls or content. If an answer begins like a call of this form, it
    is read as calls; otherwise all of it is content. `form.shape.fits_structures` must hold. `schemas`: of strict
    tools."""
    if isinstance(form.shape, Objects):
        return form.shape.read
    assert isinstance(form.shape, Marked)
    marker, read_calls = form.shape.marker, _reader(form, form.shape, schemas)

    def read(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
        feed.record()
        yield from feed.all(SPACE)
        builder.takes_content = not (yield from feed.word(marker))
        feed.put_back(feed.recorded())
        yield from pass_through(feed, builder) if builder.takes_content else read_calls(feed, builder, functions)

    return read


def text_or_calls(form: ToolForm, schemas: Schemas) -> Read:
    """Returns a reader for answers of call_grammar.talk_grammar. Calls begin at the first marker or, if the form has
    none, at the beginning of a message that begins like them. The form's own reader also finds calls elsewhere, where
    the grammar does not constrain them. `form.shape` must not be None."""
    shape = form.shape
    if isinstance(shape, Objects | Listed):
        opening, read_calls = shape.opening, shape.reader(schemas)

        def read_first(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
            feed.record()
            yield from feed.all(SPACE)
            character = yield from feed.peek()
            feed.put_back(feed.recorded())
            if character and character in opening:
                yield from read_calls(feed, builder, functions)
            else:
                yield from pass_through(feed, builder)

        return read_first
    assert isinstance(shape, Marked)
    marker, read_marked_calls = shape.marker, _reader(form, shape, schemas)

    def read(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
        if (yield from content_until(feed, builder, (marker,))):
            feed.put_back(feed.recorded())
            yield from read_marked_calls(feed, builder, functions)

    return read


def _reader(form: ToolForm, shape: Marked, schemas: Schemas) -> Read:
    return form.read if shape.own is None else shape.own.reader(schemas)
