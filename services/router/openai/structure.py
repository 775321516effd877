"""The fields of OpenAI's bodies, and of vLLM's additions to them, that say what an output must look like."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Tag

from services.router.errors import ApiError, ErrorKind, invalid
from services.router.openai.union import union
from services.router.structure import Structure, StructureKind

_MAX_CHOICES = 4096


def _schema_kind(value: object) -> str | None:
    return "#text" if isinstance(value, str) else "#schema" if isinstance(value, dict | bool) else None


# vLLM takes a schema as JSON, too.
Schema = Annotated[Annotated[str, Tag("#text")] | Annotated[Any, Tag("#schema")], union(_schema_kind, "a JSON schema")]
Choices = Annotated[list[str], Field(min_length=1, max_length=_MAX_CHOICES)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)


class JsonSchemaFormat(_Part):
    name: str | None = None
    # An object in OpenAI's document; a boolean is a schema, too.
    schema_: Any = Field(None, alias="schema")
    # Outputs match whatever it says.
    strict: bool | None = None


class ResponseFormat(_Part):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    def structure(self) -> Structure | None:
        """Raises ApiError."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return Structure(StructureKind.JSON_OBJECT, "", "response_format")
        param = "response_format.json_schema"
        if self.json_schema is None:
            raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
        if self.json_schema.schema_ is None:
            return Structure(StructureKind.JSON_OBJECT, "", param)
        return Structure(StructureKind.JSON_SCHEMA, json.dumps(self.json_schema.schema_), f"{param}.schema")


class StructuredOutputs(_Part):
    """vLLM's one field for all of its guided ones. What else it holds are knobs of vLLM's own implementation."""

    json_: Schema | None = Field(None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None


class StructureFields(BaseModel):
    """Mixed into the body: only one of these may be given."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None

    def structure(self) -> Structure | None:
        """Raises ApiError."""
        given = self._guided("guided_", self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)
        if self.guided_json_object:
            given.append(Structure(StructureKind.JSON_OBJECT, "", "guided_json_object"))
        if (outputs := self.structured_outputs) is not None:
            path = "structured_outputs."
            if outputs.structural_tag is not None:
                param = f"{path}structural_tag"
                raise ApiError(ErrorKind.UNSUPPORTED, f"'{param}' is not supported by this server.", param)
            given += self._guided(path, outputs.json_, outputs.regex, outputs.choice, outputs.grammar)
            if outputs.json_object:
                given.append(Structure(StructureKind.JSON_OBJECT, "", f"{path}json_object"))
        if self.response_format is not None and (structure := self.response_format.structure()) is not None:
            given.append(structure)
        if len(given) > 1:
            first, second = given[:2]
            message = f"'{second.param}' and '{first.param}' exclude each other: an output has one structure."
            raise invalid(message, second.param)
        return given[0] if given else None

    @staticmethod
    def _guided(
        path: str, schema: Any, regex: str | None, choice: list[str] | None, grammar: str | None
    ) -> list[Structure]:
        given = []
        if schema is not None:
            text = schema if isinstance(schema, str) else json.dumps(schema)
            given.append(Structure(StructureKind.JSON_SCHEMA, text, f"{path}json"))
        if regex is not None:
            given.append(Structure(StructureKind.REGEX, regex, f"{path}regex"))
        if choice is not None:
            given.append(Structure(StructureKind.CHOICE, json.dumps(choice), f"{path}choice"))
        if grammar is not None:
            given.append(Structure(StructureKind.GRAMMAR, grammar, f"{path}grammar"))
        return given
