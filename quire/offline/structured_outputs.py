"""Structured outputs of `LLM`, with vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

# The kinds of structure: vLLM's name for each, and the name of the option in quire.client.
_OPTIONS = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choices",
    "grammar": "grammar",
}


@dataclass(frozen=True)
class StructuredOutputsParams:
    """The structure of the output. Set exactly one of the first five fields. Raises ValueError if none or several of
    them are set, and for a parameter that Quire does not support."""

    # A JSON schema, as an object or as JSON.
    json: Mapping[str, Any] | str | None = None
    # A regular expression for the whole output.
    regex: str | None = None
    # The allowed outputs.
    choice: Sequence[str] | None = None
    # A grammar in Lark or GBNF notation.
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
            raise ValueError(f"StructuredOutputsParams needs exactly one of {', '.join(_OPTIONS)}")

    def option(self) -> tuple[str, Any]:
        """Returns the structure as an option of quire.client: its name and its value."""
        (name,) = self._given()
        return _OPTIONS[name], getattr(self, name)

    def _given(self) -> list[str]:
        return [name for name in _OPTIONS if getattr(self, name) not in (None, False)]


def structured_outputs(given: object) -> StructuredOutputsParams:
    """Returns `given` as StructuredOutputsParams. `given` can also be a mapping of the fields. Raises ValueError for
    any other type and for an unknown field."""
    if isinstance(given, StructuredOutputsParams):
        return given
    if not isinstance(given, Mapping):
        raise ValueError("use a StructuredOutputsParams or a mapping of its fields")
    known = {field.name for field in fields(StructuredOutputsParams)}
    if unknown := given.keys() - known:
        raise ValueError(f"StructuredOutputsParams has no field {min(map(str, unknown))!r}")
    return StructuredOutputsParams(**given)
