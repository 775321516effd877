"""Readers for the content around calls."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.feed import SPACE, Feed, Reading

_ANY = re.compile(r".+", re.DOTALL)
_WORDS = re.compile(r"\S+")


def content_until(feed: Feed, builder: MessageBuilder, markers: Sequence[str]) -> Reading[str]:
    """Writes the text before the first of `markers` as content, takes the marker and returns it. Returns an empty
    string if there is no marker. A marker must not be a prefix of another marker.

    If there is a marker, `feed` keeps recording when this function returns. The record begins with the space before the
    marker. If no call follows the marker, the caller writes the recorded text as content. Space at the end of a message
    with calls is dropped."""
    firsts = "".join(sorted({marker[0] for marker in markers}))
    plain = _without(firsts)
    hidden = [token for token in builder.hidden_tokens if token not in markers and token[0] in firsts]
    space = ""
    while character := (yield from feed.peek()):
        if held := feed.here(SPACE):
            space += held
            continue
        piece = feed.here(plain)
        if not piece and character in firsts:
            feed.record(space)
            for marker in markers:
                if (yield from feed.word(marker)):
                    return marker
            is_hidden = False
            for token in hidden:
                is_hidden = is_hidden or (yield from feed.word(token))
            feed.recorded()
            if is_hidden:
                continue
            piece = feed.take()
        builder.content(space + piece)
        space = ""
    if not builder.has_calls:
        builder.content(space)
    return ""


def read_marked(
    feed: Feed, builder: MessageBuilder, ends: Mapping[str, str], read: Callable[[str], Reading[bool]]
) -> Reading[None]:
    """Reads a message of content and calls, where a marker precedes each call. `ends` maps each marker to the text that
    closes its call; the model can leave this text out. `read(marker)` reads a call from `feed`, after the marker and
    the space behind it. It returns False if there is no call; then everything since the marker is content."""
    while marker := (yield from content_until(feed, builder, tuple(ends))):
        yield from feed.all(SPACE)
        if (yield from read(marker)):
            feed.recorded()
            yield from feed.all(SPACE)
            yield from feed.word(ends[marker])
        else:
            builder.no_call(feed.recorded())


@functools.cache
def _without(characters: str) -> re.Pattern[str]:
    """Returns a pattern for text without whitespace and without any of `characters`."""
    return re.compile(rf"[^\s{re.escape(characters)}]+")


def rest_is_content(feed: Feed, builder: MessageBuilder) -> Reading[None]:
    """Writes the rest of the text as content, except space at the end of a message with calls."""
    space = ""
    while (yield from feed.peek()):
        if held := feed.here(SPACE):
            space += held
            continue
        builder.content(space + feed.here(_WORDS))
        space = ""
    if not builder.has_calls:
        builder.content(space)


def pass_through(feed: Feed, builder: MessageBuilder) -> Reading[None]:
    """Writes the rest of the text as content, unchanged."""
    while (yield from feed.peek()):
        builder.content(feed.here(_ANY))
