"""Tools: functions that a model can call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.inference.v1 import inference_pb2

_MODES = {
    "auto": inference_pb2.TOOL_MODE_AUTO,
    "none": inference_pb2.TOOL_MODE_NONE,
    "required": inference_pb2.TOOL_MODE_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str = ""
    # JSON schema of the function's arguments; None for a function without arguments.
    parameters: Mapping[str, Any] | None = None
    # Whether the arguments of every call match the schema. Those of required calls always do.
    strict: bool = False


def tools_to_proto(tools: Iterable[Tool]) -> list[inference_pb2.Tool]:
    return [
        inference_pb2.Tool(
            name=tool.name,
            description=tool.description,
            parameters="" if tool.parameters is None else json.dumps(tool.parameters),
            strict=tool.strict,
        )
        for tool in tools
    ]


def tool_choice_to_proto(choice: str | None, parallel: bool | None) -> inference_pb2.ToolChoice:
    """Converts a tool choice. `choice`: auto, none, required or a function's name; None: auto. `parallel`: whether one
    answer can contain several tool calls; None: the server's default."""
    if choice is None or choice in _MODES:
        return inference_pb2.ToolChoice(mode=_MODES[choice or "auto"], parallel=parallel)
    return inference_pb2.ToolChoice(name=choice, parallel=parallel)
