"""JSON encoding in pieces. A large answer is encoded while it is sent: its text is never in memory as a whole, and the
event loop is not blocked for long.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from json.encoder import encode_basestring

# Size of a piece, which is sent as one message: a piece is complete when it has PIECE_BYTES bytes or PIECE_TEXTS texts.
# Making a piece takes a few milliseconds.
PIECE_BYTES = 65_536
PIECE_TEXTS = 2_048
# Maximum number of array elements, and of characters of a string, that are encoded in one call.
_RUN_ITEMS = 1024
_RUN_CHARS = 16_384


@dataclass(frozen=True, slots=True)
class Items:
    """An array whose elements are generated one at a time while it is encoded."""

    values: Iterable[object]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value that is already JSON text."""

    text: str


def dumps(value: object) -> str:
    """Returns the JSON text of a small value that contains no `Items`."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def texts_of(value: object) -> Iterator[str]:
    """Yields the JSON of a value as consecutive texts. Each text is short, or is one element of `Items`."""
    match value:
        case dict():
            separator = "{"
            for name, item in value.items():
                yield f"{separator}{dumps(name)}:"
                yield from texts_of(item)
                separator = ","
            yield "{}" if separator == "{" else "}"
        case Items():
            separator = "["
            for item in value.values:
                yield separator
                yield item.text if isinstance(item, Encoded) else dumps(item)
                separator = ","
            yield "[]" if separator == "[" else "]"
        case list() if value and isinstance(value[0], (dict, list, Items, str)):
            separator = "["
            for item in value:
                yield separator
                yield from texts_of(item)
                separator = ","
            yield "]"
        case list() if len(value) > _RUN_ITEMS:
            separator = "["
            for start in range(0, len(value), _RUN_ITEMS):
                yield separator + dumps(value[start : start + _RUN_ITEMS])[1:-1]
                separator = ","
            yield "]"
        case str() if len(value) > _RUN_CHARS:
            yield '"'
            for start in range(0, len(value), _RUN_CHARS):
                yield encode_basestring(value[start : start + _RUN_CHARS])[1:-1]
            yield '"'
        case Encoded():
            yield value.text
        case _:
            yield dumps(value)


def dump(value: object) -> bytes:
    """Returns the JSON of a small value as bytes."""
    return "".join(texts_of(value)).encode()


def array(items: Iterable[str]) -> Iterator[str]:
    """Yields the JSON of an array as consecutive texts. `items`: the JSON text of each element."""
    separator = "["
    for item in items:
        yield separator + item
        separator = ","
    yield "[]" if separator == "[" else "]"


def in_pieces(texts: Iterable[str]) -> Iterator[bytes]:
    """Joins consecutive texts into pieces, in UTF-8. Takes texts from the iterator only when the next piece needs
    them, so that an answer can be generated while it is sent."""
    piece = bytearray()
    num_texts = 0
    for text in texts:
        piece += text.encode()
        num_texts += 1
        if len(piece) >= PIECE_BYTES or num_texts >= PIECE_TEXTS:
            yield bytes(piece)
            piece.clear()
            num_texts = 0
    if piece:
        yield bytes(piece)
