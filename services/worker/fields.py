"""Reads values of config.json, and checks the type and range of each.

The values determine how much memory is allocated and what is computed, so each value is checked before it is used. The
upper bounds are far above the values of any published model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from services.worker.errors import ModelError

MAX_LAYERS = 4096
MAX_SIZE = 1 << 22  # hidden size of the model and of its MLP
MAX_HEADS = 1 << 14
MAX_HEAD_DIM = 1 << 12
MAX_VOCAB_SIZE = 1 << 24
MAX_POSITIONS = 100_000_000
_MAX_SHOWN_CHARS = 60


class Fields:
    """Reads the values of one JSON object. Each method raises ModelError if the value has another type than the method
    returns, or is out of bounds. A method with a `default` returns the default if the value is missing or null."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        """`where`: the start of each error message, such as the file's path."""
        self.values = values
        self.where = where

    def count(self, name: str, high: int, default: int | None = None, low: int = 1) -> int:
        """Returns an integer from `low` to `high`. If it is missing and there is no `default`, raises ModelError."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(name, f"an integer from {low:,} to {high:,}")
        return value

    def optional_count(self, name: str, high: int, low: int = 1) -> int | None:
        return None if self.values.get(name) is None else self.count(name, high, low=low)

    def number(self, name: str, default: float, above: float, high: float) -> float:
        """Returns the field's number. Raises ModelError unless it is greater than `above` and at most `high`."""
        value = self._value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not above < value <= high:
            raise self.wrong(name, f"a number over {above:g}, at most {high:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def texts(self, name: str) -> list[str]:
        """Returns a list of strings; an empty list if the value is missing."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "a list of strings")
        return value

    def items(self, name: str, length: int) -> list[Any] | None:
        """Returns the field as a list of exactly `length` values of any type; None if the field is missing."""
        value = self.values.get(name)
        if value is not None and (not isinstance(value, list) or len(value) != length):
            raise self.wrong(name, f"a list of {length:,} values")
        return value

    def nested(self, name: str) -> Fields | None:
        """Returns a nested object; None if it is missing or empty."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return Fields(value, f"{self.where}: {name}") if value else None

    def parts(self, name: str, keys: Sequence[str]) -> list[Fields] | None:
        """Returns these fields once per key, each time with the object `name` replaced by its own object `key`; None if
        `name` has no such objects. Raises ModelError if it has only some of them."""
        outer = self.nested(name)
        nested = [] if outer is None else [outer.values.get(key) for key in keys]
        if all(value is None for value in nested):
            return None
        if not all(isinstance(value, Mapping) for value in nested):
            raise self.wrong(name, f"an object with {' and '.join(keys)}")
        # RoPE in the form of transformers 4 (`rope_scaling`) would win over that of each part.
        others = {key: value for key, value in self.values.items() if key != "rope_scaling"}
        return [Fields({**others, name: value}, self.where) for value in nested]

    def wrong(self, name: str, expected: str) -> ModelError:
        return ModelError(f"{self.where}: {name} is {show(self.values.get(name))}; expected {expected}")

    def _value(self, name: str, default: object) -> object:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if name not in self.values:
            raise ModelError(f"{self.where} lacks {name!r}")
        return value


def show(value: object) -> str:
    """Returns `value` as JSON for an error message, shortened if it is long."""
    if isinstance(value, int) and abs(value) >= 10**_MAX_SHOWN_CHARS:
        return "a number of too many digits"
    if isinstance(value, list | Mapping):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,} values"
    text = json.dumps(value) if isinstance(value, str | int | float | None) else repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"


def is_unicode(text: str) -> bool:
    """Returns whether the text has no lone surrogates, which JSON can spell and protobuf cannot send."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Context manager that raises ModelError if malformed input causes an error in the `with` block, such as TypeError
    or LookupError. `what`: the input's name in the message."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ModelError(f"{what} cannot be read: {type(error).__name__}: {error}") from error


def is_finite(value: object) -> bool:
    """Returns whether `value` is a finite number. Returns False for an integer that is too large for a float."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False
