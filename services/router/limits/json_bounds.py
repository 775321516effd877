"""Counts the values of a JSON body before it is parsed, and refuses a body with too many.

Parsing a body holds Python's interpreter lock, which stops every stream of the router. A field takes about 1 µs, an
object or an array 1 to 10 µs with its validation, a string 0.2 µs, a number 0.1 µs
(docs/adr/0020-what-clients-send.md). A body of 4 MB can hold two million values.

For nearly every body, it is enough to count brackets, quotes, colons and commas, which takes 1 ms for 4 MB. Strings can
contain these characters, too, so the counts can be too high. If a count exceeds its limit, a scan counts exactly: it
skips the contents of strings. The scan stops as soon as a count is too high, so its own work is limited as well.

The scan does not validate the document. It counts a valid document exactly. In an invalid one, it never stops before
the place of the first error, where the parser stops, so it has counted every value that the parser will read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import AnyStr

from services.router.errors import ApiError, invalid

# Limits for one body: the number of objects and arrays together, the number of fields in all objects, the number of
# strings in all arrays, and the number of items. Items are the strings and numbers in all arrays, such as token ids.
MAX_CONTAINERS = 32_768
MAX_FIELDS = 65_536
MAX_STRINGS = 131_072
MAX_ITEMS = 524_288

_ITEMS = "strings and numbers in arrays"
_MAX_NAME_CHARS = 64
# Maximum number of nested objects and arrays that a path in an error names.
_MAX_NAMED_DEPTH = 8
# Matches a string, with the colon after it if the string is a field's name; or a bracket; or text between strings and
# brackets; or the quotation mark of an unterminated string.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"(?:[ \t\r\n]*+:)?+|[{}\[\]]|[^"{}\[\]]++|"', re.DOTALL)
_QUOTE, _COLON = ord('"'), ord(":")
_OBJECT, _ARRAY, _OBJECT_END, _ARRAY_END = ord("{"), ord("["), ord("}"), ord("]")


def check_json(body: bytes) -> None:
    """Raises ApiError if the body has more values than the limits above allow. The error names the field that has too
    many values."""
    if not _Counts.at_most(body).is_allowed:
        _Scan(body).run(_Counts())


def check_json_texts(texts: Sequence[tuple[str, str]]) -> None:
    """Checks the JSON in text fields of a request, such as the arguments of tool calls. Raises ApiError if all of them
    together have more values than one body can have. `texts`: for each field, its name in errors and its text."""
    most = _Counts()
    for _, text in texts:
        most = most.plus(_Counts.at_most(text))
    if most.is_allowed:
        return
    counts = _Counts()
    for param, text in texts:
        counts = _Scan(text.encode(errors="replace"), param).run(counts)


def num_values(body: bytes) -> int:
    """Returns an upper bound of the number of values in the body."""
    return body.count(b",") + body.count(b"{") + body.count(b"[") + 1


@dataclass(frozen=True, slots=True)
class _Counts:
    """A document's counts of objects and arrays (`containers`), of fields of objects, of strings in arrays, and of
    strings and numbers in arrays (`items`)."""

    containers: int = 0
    fields: int = 0
    strings: int = 0
    items: int = 0

    @classmethod
    def at_most(cls, document: AnyStr) -> _Counts:
        """Returns upper bounds of a document's counts. They can be too high, because brackets, quotes, colons and
        commas inside strings also count.
        """
        if isinstance(document, str):
            opening, array, quote, colon, comma = "{", "[", '"', ":", ","
        else:
            opening, array, quote, colon, comma = b"{", b"[", b'"', b":", b","
        num_containers = document.count(opening) + document.count(array)
        num_items = document.count(comma) + num_containers
        num_strings = min(document.count(quote) // 2, num_items)
        return cls(num_containers, document.count(colon), num_strings, num_items)

    def plus(self, more: _Counts) -> _Counts:
        return _Counts(
            self.containers + more.containers,
            self.fields + more.fields,
            self.strings + more.strings,
            self.items + more.items,
        )

    @property
    def is_allowed(self) -> bool:
        return (
            self.containers <= MAX_CONTAINERS
            and self.fields <= MAX_FIELDS
            and self.strings <= MAX_STRINGS
            and self.items <= MAX_ITEMS
        )


class _Level:
    """An open object or array."""

    __slots__ = ("count", "is_object", "key")

    def __init__(self, is_object: bool) -> None:
        self.is_object = is_object
        # If this is an array: how many strings, objects and arrays it has so far, for the index in an error's path.
        # Other elements, such as 1.5 or null, are not counted.
        self.count = 0
        # If this is an object: start and end, in the body, of the name of its last field.
        self.key = (0, 0)


class _Scan:
    def __init__(self, body: bytes, param: str = "") -> None:
        """`param`: name of the field that contains the document; empty if the document is the body."""
        self._body = body
        self._param = param
        self._open: list[_Level] = []

    def run(self, counts: _Counts) -> _Counts:
        """Adds the document's counts to `counts` and returns the sums. Raises ApiError if a sum exceeds its limit."""
        body, levels = self._body, self._open
        num_containers, num_fields = counts.containers, counts.fields
        num_strings, num_items = counts.strings, counts.items
        for token in _TOKEN.finditer(body):
            start, end = token.span()
            first = body[start]
            level = levels[-1] if levels else None
            if first == _QUOTE:
                if end - start == 1:
                    # An unterminated string: the parser stops at it, too. If the scan went on, it would search the rest
                    # of the body again at each later quotation mark.
                    break
                if body[end - 1] == _COLON:
                    num_fields += 1
                    if level is not None:
                        level.key = (start, end)
                    if num_fields > MAX_FIELDS:
                        # The error names the object that contains the field. If the field is at the top level of the
                        # body, the error names the field itself.
                        del levels[max(1, len(levels) - 1) :]
                        raise self._too_many(MAX_FIELDS, "fields of objects")
                elif level is not None and not level.is_object:
                    level.count += 1
                    num_strings += 1
                    if num_strings > MAX_STRINGS:
                        raise self._too_many(MAX_STRINGS, "strings in arrays")
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

        return _Counts(num_containers, num_fields, num_strings, num_items)

    def _too_many(self, limit: int, what: str) -> ApiError:
        param = self._param or self._path()
        message = f"Invalid '{param}': the request holds too many values. It may have at most {limit} {what} in all."
        return invalid(message, param, "too_many_values")

    def _path(self) -> str:
        """Returns the path of the place that the scan has reached, such as messages[0].content."""
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
