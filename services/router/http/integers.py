"""Accepts numbers such as `5.0` where a body must have an integer. In JSON Schema they are integers, and some clients
send them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import ErrorDetails

_NO_INTEGER = ("int_type", "int_from_float")


def write_integers(body: Any, errors: Sequence[ErrorDetails]) -> bool:
    """Replaces floats such as 5.0 in `body` by integers wherever an error reports that an integer is expected. If the
    float is an element of a list, replaces all such floats of the list, because validation reports only the first.
    Returns whether it replaced any."""
    changed = False
    for error in errors:
        if error["type"] in _NO_INTEGER and _is_integral(error["input"]):
            changed |= _write(body, error["loc"])
    return changed


def _write(body: Any, location: tuple[int | str, ...]) -> bool:
    """Replaces the float at `location` by an integer. If the float is in a list, replaces all integral floats of that
    list. `location`: `loc` of a pydantic error. Some parts of it name a union's member and not a field; they are
    skipped. Returns whether the location was found."""
    holder: Any = None
    key: Any = None
    value = body
    for part in location:
        if isinstance(value, list) and isinstance(part, int):
            # If lists are nested, `holder` stays the outermost list: `_integers` replaces its floats at all depths.
            if not isinstance(holder, list):
                holder, key = value, part
            value = value[part]
        elif isinstance(value, dict) and part in value:
            holder, key, value = value, part, value[part]
    if isinstance(holder, list):
        holder[:] = map(_integers, holder)
    elif holder is not None:
        holder[key] = _integers(value)
    return holder is not None


def _integers(value: Any) -> Any:
    if isinstance(value, list):
        return [_integers(item) for item in value]
    return int(value) if _is_integral(value) else value


def _is_integral(value: object) -> bool:
    return isinstance(value, float) and value.is_integer()
