"""JSON in pieces: a large answer is encoded while it is sent, so that neither its text nor the time it takes is held at
once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from json.encoder import encode_basestring

# Of one message. A piece is over when it has so many bytes or texts: to make it takes a few milliseconds.
PIECE_BYTES = 65_536
PIECE_TEXTS = 2_048
# Of a value that is encoded in one go: elements of an array, and characters of a string.
_RUN_ITEMS = 1024
_RUN_CHARS = 16_384


@dataclass(frozen=True, slots=True)
class Items:
    """An array whose elements are made one at a time, while it is encoded."""

    values: Iterable[object]


@dataclass(frozen=True, slots=True)
class Encoded:
    """JSON already."""

    text: str


def dumps(value: object) -> str:
    """JSON of a small value without `Items` in it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def texts_of(value: object) -> Iterator[str]:
    """The JSON of a value, as texts that make it up. Each is short, or one element of `Items`."""
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
    """JSON in one go, of what is small."""
    return "".join(texts_of(value)).encode()


def array(items: Iterable[str]) -> Iterator[str]:
    """The texts of an array of items, which are JSON each."""
    separator = "["
    for item in items:
        yield separator + item
        separator = ","
    yield "[]" if separator == "[" else "]"


def in_pieces(texts: Iterable[str]) -> Iterator[bytes]:
    """The document that `texts` make up, in messages. The next texts are made when the next message is asked for."""
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
