"""Tools in requests of the Responses API. Only functions are supported. Tools that OpenAI hosts are refused with an
error that names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from services.router.chat import Tool, ToolChoice, ToolMode
from services.router.errors import ApiError, ErrorKind, invalid
from services.router.http import Body, union

_MODES = {"none": ToolMode.NONE, "auto": ToolMode.AUTO, "required": ToolMode.REQUIRED}


class ResponseTool(Body):
    known_extras = frozenset({"defer_loading", "output_schema"})
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {"async": (False,)}

    type: str = Field(description="`function`; other types are refused with an error that names them.")
    name: str | None = Field(None, description="Name of the function; required.")
    description: str | None = Field(None, description="Description of the function, for the model.")
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments.")
    strict: bool | None = Field(
        None,
        description=(
            "Whether the arguments of every call match the schema. Those of forced calls always do. No effect if the "
            "model writes arguments in a format other than JSON."
        ),
    )
    allowed_callers: list[str] | None = Field(
        None, description="Permitted callers of the tool. Must contain `direct`: here, only the model calls tools."
    )

    def to_tool(self, param: str) -> Tool:
        """Converts the tool. `param`: path of the tool in the request, for error messages. Raises ApiError."""
        if self.type != "function":
            message = f"Invalid '{param}.type': the tool '{self.type[:64]}' is not supported by this server."
            raise ApiError(ErrorKind.UNSUPPORTED, message, f"{param}.type")
        if self.allowed_callers is not None and "direct" not in self.allowed_callers:
            message = f"Invalid '{param}.allowed_callers': on this server, only the model can call tools. Add 'direct'."
            raise ApiError(ErrorKind.UNSUPPORTED, message, f"{param}.allowed_callers")
        if not self.name:
            raise invalid(f"Missing required parameter: '{param}.name'.", f"{param}.name", "missing_required_parameter")
        return Tool(self.name, self.description or "", self.parameters, bool(self.strict))

    def echo(self) -> dict[str, Any]:
        """Returns the tool as a JSON value for the response, which repeats the request's tools."""
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": bool(self.strict),
        }


class AllowedTool(Body):
    type: str = Field(description="`function`.")
    name: str | None = Field(None, description="Name of one of `tools`.")


class ResponseToolChoice(Body):
    type: str = Field(description="`function` or `allowed_tools`.")
    name: str | None = Field(None, description="With `function`: name of the function to call.")
    mode: Literal["auto", "required"] | None = Field(
        None,
        description=(
            "With `allowed_tools`. `required`: at least one of the tools must be called; `auto`: the model decides."
        ),
    )
    tools: list[AllowedTool] | None = Field(
        None, min_length=1, description="With `allowed_tools`: the tools that the model may call."
    )

    def echo(self) -> dict[str, Any]:
        """Returns the choice as a JSON value. The response repeats it. `choose` must have accepted the choice."""
        if self.type == "function":
            return {"type": self.type, "name": self.name}
        tools = [{"type": tool.type, "name": tool.name} for tool in self.tools or ()]
        return {"type": self.type, "mode": self.mode or "auto", "tools": tools}


def _tag(value: object) -> str | None:
    return "#string" if isinstance(value, str) else "#object" if isinstance(value, dict) else None


StringOrToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("#string")] | Annotated[ResponseToolChoice, Tag("#object")],
    union(_tag, "a string or an object"),
]


def choose(
    choice: str | ResponseToolChoice | None, tools: tuple[Tool, ...], parallel: bool
) -> tuple[tuple[Tool, ...], ToolChoice]:
    """Returns the tools that the model may call, and whether it must call one of them. Raises ApiError."""
    if choice is None or isinstance(choice, str):
        mode = _MODES[choice or "auto"]
        if mode is ToolMode.REQUIRED and not tools:
            raise invalid("Invalid 'tool_choice': it requires a call, but 'tools' is empty.", "tool_choice")
        return tools, ToolChoice(mode, parallel=parallel)
    known = {tool.name for tool in tools}
    match choice.type:
        case "function":
            if choice.name not in known:
                raise invalid("Invalid 'tool_choice.name': no tool in 'tools' has this name.", "tool_choice.name")
            return tools, ToolChoice(ToolMode.NAMED, choice.name or "", parallel)
        case "allowed_tools":
            allowed = {tool.name for tool in choice.tools or ()}
            if not allowed or not allowed <= known:
                message = "Invalid 'tool_choice.tools': expected one or more names of tools in 'tools'."
                raise invalid(message, "tool_choice.tools")
            return (
                tuple(tool for tool in tools if tool.name in allowed),
                ToolChoice(_MODES[choice.mode or "auto"], parallel=parallel),
            )
        case other:
            message = f"Invalid 'tool_choice.type': '{other[:64]}' is not supported by this server."
            raise ApiError(ErrorKind.UNSUPPORTED, message, "tool_choice.type")
