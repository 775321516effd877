"""Objects of JSON bodies, which may have fields that nobody knows: those are ignored and counted. A list or a map in
them is looked at up to its first fault.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler


def _end_at_first_fault(schema: Any) -> None:
    """One fault is told. To list those of a million token ids, as pydantic would, takes seconds and gigabytes."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "dict"):
            schema["fail_fast"] = True
        for name, part in schema.items():
            if name != "metadata":
                _end_at_first_fault(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _end_at_first_fault(part)


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True)

    # Fields besides the declared ones that are known: what they ask for is refused, or the answer is right without it.
    known_extras: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema = handler(source)
        _end_at_first_fault(handler.resolve_ref_schema(schema))
        return schema

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
