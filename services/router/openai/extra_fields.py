"""Objects of JSON bodies, which may have fields that nobody knows: those are ignored and counted."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True)

    # Fields besides the declared ones that are known: what they ask for is refused, or the answer is right without it.
    known_extras: ClassVar[frozenset[str]] = frozenset()

    @cached_property
    def num_ignored_fields(self) -> int:
        """Those that nobody knows, here and in all objects inside; what is data (a schema, a tool's arguments) has no
        fields."""
        own = sum(name not in self.known_extras for name in self.model_extra or ())
        return own + sum(map(_num_ignored, self.__dict__.values()))


def _num_ignored(value: object) -> int:
    if isinstance(value, Body):
        return value.num_ignored_fields
    # A list of objects has nothing else: token ids need not be looked at one by one.
    if isinstance(value, list) and value and isinstance(value[0], Body):
        return sum(item.num_ignored_fields for item in value)
    return 0
