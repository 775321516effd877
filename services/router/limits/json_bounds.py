"""Counts what a JSON body holds before any of it becomes an object, and refuses a body that holds too much.

Converting a body keeps Python's interpreter, and with it every stream of the router, from anything else: a field takes
about 1 µs, an object or an array 1 to 10 µs with its validation, a number 0.1 µs (docs/adr/0020-what-clients-send.md).
A body of 4 MB can hold two million of them.

Nearly every body passes by the number of its brackets, colons and commas, which costs 1 ms for 4 MB. A text may
hold many of those, too: then a scan tells texts from structure. The scan ends at the first count that is too high, so
that its own work is bounded as well. It does not validate. It reads a valid document correctly, and a parser that stops
at the first error never reads further into an invalid one than the scan has counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import AnyStr

from services.router.errors import ApiError, invalid

# Of one body: objects and arrays, fields of all objects, and whatever else stands in arrays, such as token ids.
MAX_CONTAINERS = 32_768
MAX_FIELDS = 65_536
MAX_ITEMS = 524_288

_ITEMS = "strings and numbers in arrays"
_MAX_NAME_CHARS = 64
# A path in an error names so many of the outermost objects and arrays.
_MAX_NAMED_DEPTH = 8
# A string, with the colon behind it where it is a field's name; a bracket; what stands between those; or the quote of a
# string that never ends.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"(?:[ \t\r\n]*+:)?+|[{}\[\]]|[^"{}\[\]]++|"', re.DOTALL)
_QUOTE, _COLON = ord('"'), ord(":")
_OBJECT, _ARRAY, _OBJECT_END, _ARRAY_END = ord("{"), ord("["), ord("}"), ord("]")


def check_json(body: bytes) -> None:
    """Raises ApiError, naming the field, where the body holds more than is allowed."""
    if not _Counts.at_most(body).is_allowed:
        _Scan(body).run(_Counts())


def check_json_texts(texts: Sequence[tuple[str, str]]) -> None:
    """Raises ApiError where JSON in text fields of a request holds more, in all of the fields together, than one body
    may. `texts`: each field's name in errors, and its text."""
    most = _Counts()
    for _, text in texts:
        most = most.plus(_Counts.at_most(text))
    if most.is_allowed:
        return
    counts = _Counts()
    for param, text in texts:
        counts = _Scan(text.encode(errors="replace"), param).run(counts)


def num_values(body: bytes) -> int:
    """No fewer than the body's values."""
    return body.count(b",") + body.count(b"{") + body.count(b"[") + 1


@dataclass(frozen=True, slots=True)
class _Counts:
    """Numbers of objects and arrays, of fields, and of the values in arrays."""

    containers: int = 0
    fields: int = 0
    items: int = 0

    @classmethod
    def at_most(cls, document: AnyStr) -> _Counts:
        """Upper bounds for a document. Brackets, colons and commas inside its texts count, too."""
        opening, array, colon, comma = ("{", "[", ":", ",") if isinstance(document, str) else (b"{", b"[", b":", b",")
        num_containers = document.count(opening) + document.count(array)
        return cls(num_containers, document.count(colon), document.count(comma) + num_containers)

    def plus(self, more: _Counts) -> _Counts:
        return _Counts(self.containers + more.containers, self.fields + more.fields, self.items + more.items)

    @property
    def is_allowed(self) -> bool:
        return self.containers <= MAX_CONTAINERS and self.fields <= MAX_FIELDS and self.items <= MAX_ITEMS


class _Level:
    """An open object or array."""

    __slots__ = ("count", "is_object", "key")

    def __init__(self, is_object: bool) -> None:
        self.is_object = is_object
        # Strings, objects and arrays in an array so far.
        self.count = 0
        # Where the name of an object's last field stands in the body.
        self.key = (0, 0)


class _Scan:
    def __init__(self, body: bytes, param: str = "") -> None:
        """`param`: the field that the document is the text of."""
        self._body = body
        self._param = param
        self._open: list[_Level] = []

    def run(self, counts: _Counts) -> _Counts:
        """`counts`: of what was scanned before. Returns those with the document's. Raises ApiError."""
        body, levels = self._body, self._open
        num_containers, num_fields, num_items = counts.containers, counts.fields, counts.items
        for token in _TOKEN.finditer(body):
            start, end = token.span()
            first = body[start]
            level = levels[-1] if levels else None
            if first == _QUOTE:
                if end - start == 1:
                    # The parser ends here, too. Each quote behind this one would have the rest read to its end again.
                    break
                if body[end - 1] == _COLON:
                    num_fields += 1
                    if level is not None:
                        level.key = (start, end)
                    if num_fields > MAX_FIELDS:
                        # The object is named, and the field only where it is one of the body's own.
                        del levels[max(1, len(levels) - 1) :]
                        raise self._too_many(MAX_FIELDS, "fields of objects")
                elif level is not None and not level.is_object:
                    level.count += 1
                    num_items += 1
                    if num_items > MAX_ITEMS:
                        raise self._too_many(MAX_ITEMS, _ITEMS)
            elif first in (_OBJECT, _ARRAY):
                num_containers += 1
                if level is not None:
                    level.count += 1
                if num_containers > MAX_CONTAINERS:
                    raise self._too_many(MAX_CONTAINERS, "objects and arrays")
                levels.append(_Level(first == _OBJECT))
            elif first in (_OBJECT_END, _ARRAY_END):
                if level is None:
                    break
                levels.pop()
            elif level is not None and not level.is_object and (numbers := body[start:end].strip(b", \t\r\n")):
                num_items += numbers.count(b",") + 1
                if num_items > MAX_ITEMS:
                    raise self._too_many(MAX_ITEMS, _ITEMS)

        return _Counts(num_containers, num_fields, num_items)

    def _too_many(self, limit: int, what: str) -> ApiError:
        param = self._param or self._path()
        message = f"Invalid '{param}': the request holds too many values. It may have at most {limit} {what} in all."
        return invalid(message, param, "too_many_values")

    def _path(self) -> str:
        """The place that is being read, as in messages[0].content."""
        path = ""
        for level, inner in zip(self._open[:_MAX_NAMED_DEPTH], [*self._open[1:], None], strict=False):
            if level.is_object:
                path += f".{self._name(level)}" if path else self._name(level)
            elif inner is not None:
                path += f"[{level.count - 1}]"
        return path

    def _name(self, level: _Level) -> str:
        start, end = level.key
        try:
            return str(json.loads(self._body[start : end - 1]))[:_MAX_NAME_CHARS]
        except ValueError:
            return "?"
