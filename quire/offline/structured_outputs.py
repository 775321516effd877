"""What the outputs of `LLM` must be, in vLLM's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

# vLLM's names, and those of the client's options.
_OPTIONS = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choices",
    "grammar": "grammar",
}


@dataclass(frozen=True)
class StructuredOutputsParams:
    """Exactly one of the first five. Raises ValueError for others, and for a parameter that this version does not know
    how to keep."""

    # A JSON schema, as an object or as JSON.
    json: Mapping[str, Any] | str | None = None
    # A regular expression for the whole output.
    regex: str | None = None
    # Strings of which it is one.
    choice: Sequence[str] | None = None
    # In Lark's notation or in GBNF.
    grammar: str | None = None
    # Any JSON object.
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: Any = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in _OPTIONS and getattr(self, field.name) != field.default:
                raise ValueError(f"StructuredOutputsParams.{field.name} is not supported")
        if len(self._given()) != 1:
            raise ValueError(f"StructuredOutputsParams needs one of {', '.join(_OPTIONS)}")

    def option(self) -> tuple[str, Any]:
        """Name and value as the client takes them."""
        (name,) = self._given()
        return _OPTIONS[name], getattr(self, name)

    def _given(self) -> list[str]:
        return [name for name in _OPTIONS if getattr(self, name) not in (None, False)]


def structured_outputs(given: object) -> StructuredOutputsParams:
    """Of a mapping, too. Raises ValueError for what is neither, and for a field that there is not."""
    if isinstance(given, StructuredOutputsParams):
        return given
    if not isinstance(given, Mapping):
        raise ValueError("use StructuredOutputsParams")
    known = {field.name for field in fields(StructuredOutputsParams)}
    if unknown := given.keys() - known:
        raise ValueError(f"there is no {min(map(str, unknown))!r}")
    return StructuredOutputsParams(**given)
