"""`response_format`, in OpenAI's form and in the forms of other servers."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from services.router.errors import ApiError, invalid
from services.router.grammar import Structure, StructureKind
from services.router.http import Body


class JsonSchemaFormat(Body):
    known_extras = frozenset({"description"})

    name: str | None = Field(None, description="Name of the schema; no effect.")
    # OpenAI's documentation allows only an object, but a boolean is also a valid JSON schema.
    schema_: Any = Field(None, alias="schema", description="The JSON schema. Default: any JSON object.")
    strict: bool | None = Field(None, description="No effect: answers always match the schema.")


class TypedValue(Body):
    """TGI's `grammar`."""

    type: Literal["json", "json_object", "json_schema", "regex"] = Field(description="Kind of `value`.")
    value: Any = Field(description="A JSON schema, or a regular expression.")

    def structure(self) -> Structure:
        """Returns the required structure of the answer. Raises ApiError."""
        return _value_structure(self.type, self.value, "grammar.value")


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema", "json", "regex"] = Field(
        description="OpenAI's `text`, `json_object` and `json_schema`; TGI's `json` and `regex`."
    )
    json_schema: JsonSchemaFormat | None = Field(None, description="The JSON schema, in OpenAI's form.")
    schema_: Any = Field(
        None, alias="schema", description="The JSON schema, in the form of llama.cpp, Together and Fireworks."
    )
    value: Any = Field(None, description="The JSON schema or regular expression, in TGI's form.")

    def structure(self) -> Structure | None:
        """Returns the required structure of the answer, if any. Raises ApiError."""
        if self.type == "text":
            return None
        places = {"json_schema": self.json_schema, "schema": self.schema_, "value": self.value}
        given = [f"response_format.{place}" for place, value in places.items() if value is not None]
        if len(given) > 1:
            raise exclusive(given[1], given[0])
        if self.value is not None:
            return _value_structure(self.type, self.value, given[0])
        if self.json_schema is not None:
            return schema_structure(self.json_schema.schema_, f"{given[0]}.schema")
        if self.type == "json_object" and not self.schema_:
            return Structure(StructureKind.JSON_OBJECT, "", "response_format")
        if self.schema_ is not None and self.type != "regex":
            return schema_structure(self.schema_, given[0])
        param = f"response_format.{'json_schema' if self.type == 'json_schema' else 'value'}"
        raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def _value_structure(kind: str, value: Any, param: str) -> Structure:
    if kind == "regex":
        if not isinstance(value, str):
            raise invalid(f"Invalid type for '{param}': expected a string.", param, "invalid_type")
        return Structure(StructureKind.REGEX, value, param)
    # With the type `json_schema`, the value can be the schema itself, or as in OpenAI's API an object with a name and a
    # schema.
    if kind == "json_schema" and isinstance(value, dict) and "schema" in value:
        return schema_structure(value["schema"], f"{param}.schema")
    return schema_structure(value, param)


def schema_structure(schema: Any, param: str) -> Structure:
    """Returns the structure of a JSON schema. `schema`: an object or JSON text; None: any JSON object."""
    if schema is None:
        return Structure(StructureKind.JSON_OBJECT, "", param)
    return Structure(StructureKind.JSON_SCHEMA, schema if isinstance(schema, str) else json.dumps(schema), param)


def exclusive(param: str, other: str) -> ApiError:
    return invalid(f"'{param}' and '{other}' exclude each other: an output has only one structure.", param)
