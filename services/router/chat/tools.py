"""Tools: functions that a model may call, and the checks of a request's tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from services.router.errors import invalid, too_many

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MAX_TOOLS = 128
# Limits in characters: for one function's parameters as JSON, and for all functions with their names and descriptions.
MAX_SCHEMA_CHARS = 65_536
MAX_TOOLS_CHARS = 1_048_576
# Maximum nesting of a function's parameters, the same as for a JSON body over HTTP. Without this limit, the maximum
# would depend on the Python version, because the limits of Python's JSON encoder differ.
MAX_SCHEMA_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str = ""
    # JSON schema of the arguments, which are an object. None: the function takes no arguments.
    parameters: Mapping[str, Any] | None = None
    # Whether the arguments of calls that the model decides to make must match the schema. Those of forced calls always
    # match it.
    strict: bool = False

    def to_template(self) -> dict[str, Any]:
        """Returns the tool in OpenAI's form, which chat templates expect."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        # Templates read `parameters` without a check, so the field is always set.
        function["parameters"] = {"type": "object", "properties": {}} if self.parameters is None else self.parameters
        return {"type": "function", "function": function}


class ToolMode(Enum):
    """How freely the model calls tools: never, when it likes, at least once, or exactly the named function."""

    NONE = auto()
    AUTO = auto()
    REQUIRED = auto()
    NAMED = auto()


@dataclass(frozen=True, slots=True)
class ToolChoice:
    mode: ToolMode = ToolMode.AUTO
    # The function's name. Only for ToolMode.NAMED.
    name: str = ""
    # Whether one message may contain several calls.
    parallel: bool = True


AS_IT_LIKES = ToolChoice()


@dataclass(frozen=True, slots=True)
class ToolPath:
    """Paths of an API's tool fields, for error messages."""

    # Path of one tool; {} is its index.
    tool: str = "tools[{}].function"
    # Name of the schema's field in a tool.
    parameters: str = "parameters"

    @property
    def all(self) -> str:
        return self.tool.partition("[")[0]

    def schema(self, index: int) -> str:
        return f"{self.tool.format(index)}.{self.parameters}"


OPENAI_PATH = ToolPath()


def check_tools(tools: Sequence[Tool], choice: ToolChoice, path: ToolPath) -> int:
    """Checks the tools and the choice among them. Returns the number of characters in all names, descriptions and
    parameters (as JSON). Takes milliseconds for large schemas. Raises ApiError."""
    list_param = path.all
    if len(tools) > MAX_TOOLS:
        raise too_many(list_param, MAX_TOOLS, len(tools))
    names: set[str] = set()
    size = 0
    for index, tool in enumerate(tools):
        param = path.tool.format(index)
        if not TOOL_NAME.fullmatch(tool.name):
            message = "a function's name must have 1 to 64 characters from a-z, A-Z, 0-9, underscores and dashes"
            raise invalid(f"Invalid '{param}.name': {message}.", f"{param}.name", "invalid_value")
        if tool.name in names:
            raise invalid(f"Invalid '{param}.name': another tool has this name.", f"{param}.name", "invalid_value")
        names.add(tool.name)
        size += len(tool.name) + len(tool.description) + _schema_chars(tool, path.schema(index))
    if size > MAX_TOOLS_CHARS:
        message = f"Invalid '{list_param}': the tools have {size} characters; the maximum is {MAX_TOOLS_CHARS}."
        raise invalid(message, list_param, "invalid_value")
    if choice.mode in (ToolMode.REQUIRED, ToolMode.NAMED) and not tools:
        message = "Invalid 'tool_choice': requiring a call needs 'tools'."
        raise invalid(message, "tool_choice", "invalid_value")
    if choice.mode is ToolMode.NAMED and choice.name not in names:
        message = f"Invalid 'tool_choice': there is no tool named {choice.name[:64]!r}."
        raise invalid(message, "tool_choice", "invalid_value")
    return size


def _schema_chars(tool: Tool, param: str) -> int:
    if tool.parameters is None:
        return 0
    if tool.parameters.get("type", "object") != "object":
        raise invalid(f"Invalid '{param}': the schema must have 'type': 'object'.", param, "invalid_value")
    if _is_deeper(tool.parameters, MAX_SCHEMA_DEPTH):
        message = f"Invalid '{param}': the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep."
        raise invalid(message, param, "invalid_value")
    size = len(json.dumps(tool.parameters))
    if size > MAX_SCHEMA_CHARS:
        message = f"Invalid '{param}': the schema has {size} characters as JSON; the maximum is {MAX_SCHEMA_CHARS}."
        raise invalid(message, param, "invalid_value")
    return size


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        inner: list[Any] = []
        for outer in level:
            if isinstance(outer, Mapping):
                inner += outer.values()
            elif isinstance(outer, list):
                inner += outer
        level = inner
    return any(isinstance(outer, Mapping | list) for outer in level)


def check_tool_messages(messages: Sequence[Mapping[str, Any]], path: str = "messages") -> None:
    """Raises ApiError if a tool message answers no earlier call. `messages`: in the form that chat templates expect.
    `path`: name of the list of messages in errors."""
    made: set[str] = set()
    for index, message in enumerate(messages):
        made.update(call["id"] for call in message.get("tool_calls") or ())
        if message["role"] != "tool":
            continue
        param = f"{path}[{index}].tool_call_id"
        if "tool_call_id" not in message:
            raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
        check_call_made(message["tool_call_id"], made, param)


def check_call_made(call_id: str, made: Set[str], param: str) -> None:
    """Raises ApiError if `call_id` is not in `made`, the ids of all earlier calls. `param`: the field that has the
    id."""
    if call_id not in made:
        raise invalid(f"Invalid '{param}': no earlier message has a tool call with this id.", param, "invalid_value")
