"""Conversion of quire.inference.v1's tools to the router's own types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from quire.inference.v1 import inference_pb2
from services.router.chat import MAX_SCHEMA_CHARS, MAX_TOOLS, Tool, ToolChoice, ToolMode, ToolPath
from services.router.errors import invalid, too_many

TOOL_PATH = ToolPath("tools[{}]")
_MODES = {
    inference_pb2.TOOL_MODE_UNSPECIFIED: ToolMode.AUTO,
    inference_pb2.TOOL_MODE_NONE: ToolMode.NONE,
    inference_pb2.TOOL_MODE_AUTO: ToolMode.AUTO,
    inference_pb2.TOOL_MODE_REQUIRED: ToolMode.REQUIRED,
}


def parameters_of(tools: Sequence[inference_pb2.Tool]) -> list[tuple[str, str]]:
    """Returns (path, JSON schema) of each tool's parameters. The path says where the request has the schema, for error
    messages. Raises ApiError if there are too many tools."""
    if len(tools) > MAX_TOOLS:
        raise too_many(TOOL_PATH.all, MAX_TOOLS, len(tools))
    return [(TOOL_PATH.schema(index), tool.parameters) for index, tool in enumerate(tools)]


def tools_from_proto(tools: Sequence[inference_pb2.Tool]) -> tuple[Tool, ...]:
    """Converts tools. Raises ApiError if a tool's parameters are too long, or are not a JSON object."""
    return tuple(_tool_from_proto(tool, TOOL_PATH.tool.format(index)) for index, tool in enumerate(tools))


def tool_choice_from_proto(choice: inference_pb2.ToolChoice) -> ToolChoice:
    """Converts a tool choice. Raises ApiError for an unknown mode."""
    parallel = not choice.HasField("parallel") or choice.parallel
    if choice.WhichOneof("choice") == "name":
        return ToolChoice(ToolMode.NAMED, choice.name, parallel)
    mode = _MODES.get(choice.mode)
    if mode is None:
        raise invalid(f"Invalid value for 'tool_choice.mode': {choice.mode}.", "tool_choice.mode", "invalid_value")
    return ToolChoice(mode, parallel=parallel)


def tool_calls_from_proto(calls: Sequence[inference_pb2.ToolCall]) -> list[dict[str, Any]]:
    """Returns calls as chat templates expect them. Their arguments can be incomplete JSON."""
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
        for call in calls
    ]


def _tool_from_proto(tool: inference_pb2.Tool, param: str) -> Tool:
    if not tool.parameters:
        return Tool(tool.name, tool.description, strict=tool.strict)
    param = f"{param}.parameters"
    if len(tool.parameters) > MAX_SCHEMA_CHARS:
        raise invalid(f"Invalid '{param}': expected at most {MAX_SCHEMA_CHARS} characters.", param)
    try:
        parameters = json.loads(tool.parameters)
    except (ValueError, RecursionError):
        raise invalid(f"Invalid '{param}': expected a JSON schema, but it is not valid JSON.", param) from None
    if not isinstance(parameters, dict):
        raise invalid(f"Invalid '{param}': expected a JSON schema that is an object.", param)
    return Tool(tool.name, tool.description, parameters, tool.strict)
