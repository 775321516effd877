"""JSON schemas of bodies and replies, from their pydantic models and protobuf messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from services.router.http import Shape
from services.router.openapi.messages import REF, message_schemas, schema_name

__all__ = ["REF", "component_schemas"]


class _Generator(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        """Omits titles, because they only repeat the field's name."""
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Omits a default of null, because the list of required fields already shows which fields can be left out."""
        described = super().default_schema(schema)
        if "default" in described and described["default"] is None:
            del described["default"]
        return described

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Puts required fields first. Without this method, inherited fields such as the sampling fields would be
        first."""
        described = super().model_schema(schema)
        if required := described.get("required"):
            properties = described["properties"]
            described["properties"] = {name: properties[name] for name in required} | properties
        return described

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """Describes a union by `anyOf` instead of pydantic's `oneOf`, because a value can fit several members: an empty
        array is an array of strings as well as of token ids."""
        return self.get_union_of_schemas([self.generate_inner(choice) for choice in schema["choices"].values()])


def component_schemas(shapes: Iterable[Shape]) -> tuple[dict[Shape, Any], dict[str, Any]]:
    """Returns two maps. The first maps each type to a reference to its schema. The second maps names to schemas: those
    of the types, and of all types nested in them."""
    unique = list(dict.fromkeys(shapes))
    messages = [shape for shape in unique if isinstance(shape, Descriptor)]
    models = [shape for shape in unique if not isinstance(shape, Descriptor)]
    generator = _Generator(ref_template=REF + "{model}")
    given = [(model, "validation", model.__pydantic_core_schema__) for model in models]
    found, definitions = generator.generate_definitions(given)  # type: ignore[arg-type]  # mypy infers str for the mode
    references: dict[Shape, Any] = {model: reference for (model, _), reference in found.items()}
    references |= {message: {"$ref": REF + schema_name(message)} for message in messages}
    return references, dict(sorted((definitions | message_schemas(messages)).items()))
