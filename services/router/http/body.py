"""Base class of the objects in JSON bodies, and its treatment of fields that are not declared.

A known field that is not implemented and would change the answer is refused. A known field without effect is ignored.
An unknown field is ignored and counted. Validation of a list or map stops at its first error.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, TypeGuard

from pydantic import BaseModel, ConfigDict, Discriminator, GetCoreSchemaHandler

from services.router.errors import ApiError, ErrorKind


def _end_at_first_fault(schema: Any) -> None:
    """Makes the validation of a list or map stop at its first error, as only one error is reported. By default,
    pydantic collects all errors: for a million invalid token ids, this takes seconds and gigabytes."""
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

    # Known fields that are not declared: they have no effect, or the body's own check handles them.
    known_extras: ClassVar[frozenset[str]] = frozenset()
    # Known fields that would change the answer and are not implemented. For each field: the values besides null that
    # are accepted, because they have no effect.
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema = handler(source)
        _end_at_first_fault(handler.resolve_ref_schema(schema))
        return schema

    @cached_property
    def num_ignored_fields(self) -> int:
        """Number of unknown fields in this object and in all objects inside it. Plain data (a schema, a tool's
        arguments) does not count."""
        own = sum(name not in self.known_extras and name not in self.not_built for name in self.model_extra or ())
        return own + sum(map(_num_ignored, self.__dict__.values()))

    def refuse_not_built(self, path: str = "") -> None:
        """Raises ApiError if this object, or one inside it, uses a feature that is not implemented. `path`: prefix of
        the fields' names in errors."""
        for name, value in (self.model_extra or {}).items():
            allowed = self.not_built.get(name)
            if allowed is not None and value is not None and value not in allowed:
                param = path + name
                message = f"'{param}' is not supported by this server. Remove it from your request."
                raise ApiError(ErrorKind.UNSUPPORTED, message, param)
        for name, value in self.__dict__.items():
            if isinstance(value, Body):
                value.refuse_not_built(f"{path}{name}.")
            elif isinstance(value, list):
                _refuse_in(value, f"{path}{name}")


def _num_ignored(value: object) -> int:
    if isinstance(value, Body):
        return value.num_ignored_fields
    # The first element shows the type of all elements, so a list of a million token ids need not be searched.
    if _holds_objects(value):
        return sum(map(_num_ignored, value))
    return 0


def _refuse_in(values: list[Any], path: str) -> None:
    if not _holds_objects(values):
        return
    for index, value in enumerate(values):
        if isinstance(value, Body):
            value.refuse_not_built(f"{path}[{index}].")
        else:
            _refuse_in(value, f"{path}[{index}]")


def _holds_objects(value: Any) -> TypeGuard[list[Any]]:
    """Whether `value` is a list of objects, or a list of such lists."""
    if not isinstance(value, list) or not value:
        return False
    return isinstance(value[0], Body) or _holds_objects(value[0])


def union(choose: Any, expected: str) -> Discriminator:
    """Returns a discriminator that picks a union's member by the shape of the value, so that errors are about this
    member only. `choose`: returns the member's tag for a value; None if no member matches. `expected`: description of
    all members, for the error about a value that matches none."""
    return Discriminator(choose, custom_error_type="wrong_type", custom_error_message=expected)


def string_or_array(value: object) -> str | None:
    return "#string" if isinstance(value, str) else "#array" if isinstance(value, list) else None
