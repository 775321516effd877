"""JSON schema of an answer that must be a tool call. It works with every model, whatever its own form of calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from services.router.chat.tools import Tool, ToolChoice, ToolMode, ToolPath
from services.router.grammar import Structure, StructureKind, with_inner

# Keywords that can allow or require properties besides those in `properties`.
_MAY_NEED_MORE = frozenset(
    {"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties"}
    | {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef", "$recursiveRef"}
    | {"dependentSchemas", "dependentRequired", "dependencies"}
)

# Keywords that describe a schema and do not affect which instances are valid.
_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})


def structure_of(tools: Sequence[Tool], choice: ToolChoice, path: ToolPath) -> Structure | None:
    """For a named function, returns the schema of its arguments. For a required call, returns the schema of an array of
    calls in vLLM's form (`name` and `parameters`). Returns None if the request forces no call. `tools` must have passed
    check_tools."""
    match choice.mode:
        case ToolMode.NAMED:
            (index,) = (index for index, tool in enumerate(tools) if tool.name == choice.name)
            return arguments_structure(tools[index], path.schema(index))
        case ToolMode.REQUIRED:
            return calls_structure(tools, choice.parallel, path)
        case _:
            return None


def strict_structure(tools: Sequence[Tool], choice: ToolChoice, path: ToolPath) -> Structure | None:
    """Returns the schema of an array of calls of the strict tools that the model may decide to call. Its definitions
    are the schemas of the tools' arguments. Returns None if there are no such tools. `tools` must have passed
    check_tools."""
    strict = strict_of(tools, choice)
    return calls_structure(strict, parallel=True, path=path) if strict else None


def strict_of(tools: Sequence[Tool], choice: ToolChoice) -> tuple[Tool, ...]:
    """Returns the strict tools that the model may decide to call. Calls that `required` or a named function asks for
    match their schemas, whether the tool is strict or not."""
    return tuple(tool for tool in tools if tool.strict) if choice.mode is ToolMode.AUTO else ()


def arguments_structure(tool: Tool, param: str) -> Structure:
    """Returns the structure of one tool's arguments. `param`: the field to name in errors."""
    return Structure(StructureKind.JSON_SCHEMA, json.dumps(_parameters(tool), ensure_ascii=False), param)


def calls_structure(tools: Sequence[Tool], parallel: bool, path: ToolPath) -> Structure:
    return Structure(StructureKind.COMPOUND_SCHEMA, json.dumps(_calls(tools, parallel), ensure_ascii=False), path.all)


def _calls(tools: Sequence[Tool], parallel: bool) -> dict[str, Any]:
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "parameters": {"$ref": f"#/$defs/{tool.name}"}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": calls},
        # Tool names are letters, digits, underscores and dashes, which need no escapes in a JSON pointer.
        "$defs": {tool.name: _parameters(tool) for tool in tools},
    }
    if not parallel:
        schema["maxItems"] = 1
    return schema


def _parameters(tool: Tool) -> dict[str, Any]:
    if tool.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    schema = {"type": "object", **_without_annotations(tool.parameters)}
    # JSON Schema allows properties that a schema does not name. A function cannot use such properties, but a model
    # without training on tool calls keeps inventing them. So the grammar forbids them.
    return schema | {"additionalProperties": False} if _names_all(schema) else schema


def _without_annotations(schema: Any) -> Any:
    """Returns a copy of a schema without texts for readers, which can be most of a schema's size."""
    if not isinstance(schema, Mapping):
        return schema
    kept = {keyword: value for keyword, value in schema.items() if keyword not in _ANNOTATIONS}
    return with_inner(kept, _without_annotations)


def _names_all(schema: Mapping[str, Any]) -> bool:
    """Returns whether `properties` in `schema` names every property that `schema` can require of an object. `schema` is
    not validated yet."""
    names, needed = schema.get("properties"), schema.get("required", [])
    if schema.keys() & _MAY_NEED_MORE or not isinstance(names, Mapping) or not isinstance(needed, list):
        return False
    return all(isinstance(name, str) and name in names for name in needed)
