"""Tools in the bodies of /v1/chat/completions: functions, `tool_choice`, and calls of earlier turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from services.router.chat import MAX_TOOLS, Tool, ToolChoice, ToolMode
from services.router.errors import invalid
from services.router.http import Body, union

FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]+$", max_length=64)]


class FunctionCall(Body):
    """A function call in an earlier turn of the conversation. Another server might have produced it, so any name is
    accepted, and the arguments can be incomplete."""

    name: str = Field(description="Name of the function.")
    arguments: str = Field(description="Arguments as the model wrote them; they may be incomplete.")


class ToolCall(Body):
    # A call has this field if a client assembled it from the chunks of a stream.
    known_extras = frozenset({"index"})

    id: str = Field(description="Id of the call, to which its result refers.")
    type: Literal["function"] = Field("function", description="Always `function`; may be left out.")
    function: FunctionCall = Field(description="The function that was called, with its arguments.")

    def to_template(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.arguments or "{}"}
        return {"id": self.id, "type": self.type, "function": function}


class FunctionDefinition(Body):
    name: FunctionName = Field(description="Name of the function.")
    description: str | None = Field(None, description="Description of the function, for the model.")
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments.")
    strict: bool | None = Field(
        None,
        description=(
            "Whether the arguments of every call match the schema. Those of forced calls always do. No effect if the "
            "model writes arguments in a format other than JSON."
        ),
    )

    def to_tool(self) -> Tool:
        return Tool(self.name, self.description or "", self.parameters, bool(self.strict))


class ToolDefinition(Body):
    known_extras = frozenset({"cache_control"})

    type: Literal["function"] = Field("function", description="Always `function`; may be left out.")
    function: FunctionDefinition = Field(description="Definition of the function.")

    def to_tool(self) -> Tool:
        return self.function.to_tool()


class NamedFunction(Body):
    name: str = Field(description="Name of one of `tools`.")


class NamedTool(Body):
    type: Literal["function"] = Field("function", description="Always `function`; may be left out.")
    function: NamedFunction = Field(description="The function to call.")


class AllowedTools(Body):
    mode: Literal["auto", "required"] = Field(
        description="`required`: at least one of the tools must be called; `auto`: the model decides."
    )
    tools: list[NamedTool] = Field(min_length=1, max_length=MAX_TOOLS, description="The tools that the model may call.")


class AllowedToolsChoice(Body):
    type: Literal["allowed_tools"] = Field(description="Restricts the calls to some of `tools`.")
    allowed_tools: AllowedTools = Field(description="The allowed tools, and whether one must be called.")


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
    """Converts tools and `tool_choice`. `choice`: a ToolChoiceField, or None. Raises ApiError if an allowed tool does
    not exist."""
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
