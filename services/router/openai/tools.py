"""Tools in the bodies of /v1/chat/completions: functions, the choice among them, and calls of earlier turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from services.router.chat.tools import MAX_TOOLS, Tool, ToolChoice, ToolMode
from services.router.errors import invalid
from services.router.openai.body import Body
from services.router.openai.union import union

FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]+$", max_length=64)]


class FunctionCall(Body):
    """Of an earlier turn, perhaps another server's: the name is any, and the arguments are what a model wrote, which
    may have been cut."""

    name: str = Field(description="The function's.")
    arguments: str = Field(description="As the model wrote them, perhaps cut.")


class ToolCall(Body):
    # Of calls that were put together from a stream.
    known_extras = frozenset({"index"})

    id: str = Field(description="By which the result names it.")
    type: Literal["function"] = Field(description="There is one kind.")
    function: FunctionCall = Field(description="What was called.")

    def to_template(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.arguments or "{}"}
        return {"id": self.id, "type": self.type, "function": function}


class FunctionDefinition(Body):
    name: FunctionName = Field(description="By which it is called.")
    description: str | None = Field(None, description="What it does, for the model.")
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of its arguments.")
    strict: bool | None = Field(None, description="Without effect where calls are forced: arguments match the schema.")

    def to_tool(self) -> Tool:
        return Tool(self.name, self.description or "", self.parameters, bool(self.strict))


class ToolDefinition(Body):
    known_extras = frozenset({"cache_control"})

    type: Literal["function"] = Field(description="There is one kind.")
    function: FunctionDefinition = Field(description="The function.")

    def to_tool(self) -> Tool:
        return self.function.to_tool()


class NamedFunction(Body):
    name: str = Field(description="Of one of `tools`.")


class NamedTool(Body):
    type: Literal["function"] = Field(description="There is one kind.")
    function: NamedFunction = Field(description="Which function is called.")


class AllowedTools(Body):
    mode: Literal["auto", "required"] = Field(description="Whether one of them has to be called.")
    tools: list[NamedTool] = Field(min_length=1, max_length=MAX_TOOLS, description="Which of `tools` may be called.")


class AllowedToolsChoice(Body):
    type: Literal["allowed_tools"] = Field(description="Some of the tools.")
    allowed_tools: AllowedTools = Field(description="Which, and how.")


def _choice_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "#mode"
    if not isinstance(value, dict):
        return None
    return "#allowed" if value.get("type") == "allowed_tools" else "#named"


ToolChoiceField = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("#mode")]
    | Annotated[NamedTool, Tag("#named")]
    | Annotated[AllowedToolsChoice, Tag("#allowed")],
    union(_choice_kind, "a string or an object"),
]
_MODES = {"none": ToolMode.NONE, "auto": ToolMode.AUTO, "required": ToolMode.REQUIRED}


def tools_and_choice(
    definitions: Sequence[ToolDefinition] | None, choice: object, parallel: bool | None
) -> tuple[tuple[Tool, ...], ToolChoice]:
    """`choice`: a ToolChoiceField, None where the body has none. Raises ApiError where a tool is allowed that there is
    not."""
    tools = tuple(definition.to_tool() for definition in definitions or ())
    several = parallel is not False
    match choice:
        case NamedTool():
            return tools, ToolChoice(ToolMode.NAMED, choice.function.name, several)
        case AllowedToolsChoice():
            allowed = {tool.function.name for tool in choice.allowed_tools.tools}
            if missing := allowed - {tool.name for tool in tools}:
                message = f"Invalid 'tool_choice': there is no tool named {min(missing)[:64]!r}."
                raise invalid(message, "tool_choice", "invalid_value")
            kept = tuple(tool for tool in tools if tool.name in allowed)
            return kept, ToolChoice(_MODES[choice.allowed_tools.mode], parallel=several)
        case str():
            return tools, ToolChoice(_MODES[choice], parallel=several)
        case _:
            return tools, ToolChoice(parallel=several)
