"""`functions` and `function_call`, OpenAI's older form of tools: at most one call per message, without an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, Tag

from services.router.apis.openai.tools import FunctionDefinition
from services.router.chat import MAX_TOOLS, Tool, ToolChoice, ToolMode, ToolPath
from services.router.errors import invalid
from services.router.http import Body, union

FUNCTIONS_PATH = ToolPath("functions[{}]")


class FunctionName(Body):
    name: str = Field(description="Name of one of `functions`.")


def _choice_kind(value: object) -> str | None:
    return "#mode" if isinstance(value, str) else "#named" if isinstance(value, dict) else None


class FunctionFields(BaseModel):
    """Mixin of a chat's body."""

    functions: list[FunctionDefinition] | None = Field(
        None,
        max_length=MAX_TOOLS,
        description="Older form of `tools`; the answer then has `function_call` instead of `tool_calls`.",
    )
    function_call: (
        Annotated[
            Annotated[Literal["none", "auto"], Tag("#mode")] | Annotated[FunctionName, Tag("#named")],
            union(_choice_kind, "a string or an object"),
        ]
        | None
    ) = Field(None, description="Older form of `tool_choice`: `none`, `auto` or a function.")

    def check_functions(self, *, has_tools: bool) -> None:
        """Raises ApiError if the fields are invalid. `has_tools`: whether the body has `tools` or `tool_choice`."""
        if has_tools and (self.functions or self.function_call is not None):
            param = "functions" if self.functions else "function_call"
            raise invalid(f"'{param}' belongs to the older form of 'tools': use only one of the two forms.", param)
        if isinstance(self.function_call, FunctionName):
            names = {function.name for function in self.functions or ()}
            if self.function_call.name not in names:
                message = f"Invalid 'function_call': there is no function named {self.function_call.name[:64]!r}."
                raise invalid(message, "function_call", "invalid_value")

    def functions_and_choice(self) -> tuple[tuple[Tool, ...], ToolChoice]:
        tools = tuple(function.to_tool() for function in self.functions or ())
        match self.function_call:
            case FunctionName(name=name):
                return tools, ToolChoice(ToolMode.NAMED, name, parallel=False)
            case "none":
                return tools, ToolChoice(ToolMode.NONE, parallel=False)
            case _:
                return tools, ToolChoice(parallel=False)


def with_tool_messages(messages: Sequence[dict[str, Any]], path: str) -> list[dict[str, Any]]:
    """Converts function calls to tool calls, and messages of role `function` to tool messages. `path`: path of the
    messages in the body, for error messages. Raises ApiError if a function message belongs to no earlier call."""
    written: list[dict[str, Any]] = []
    # Id of each function's last call.
    calls: dict[str, str] = {}
    num_calls = 0
    for index, message in enumerate(messages):
        changed = message
        if "function_call" in message:
            num_calls += 1
            function = message["function_call"]
            # Mistral's templates require ids of nine letters and digits.
            calls[function["name"]] = call_id = f"call{num_calls:05}"
            changed = {name: value for name, value in message.items() if name != "function_call"}
            changed["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
        elif message["role"] == "function":
            param = f"{path}[{index}].name"
            name = message.get("name")
            if name is None:
                raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
            if name not in calls:
                message_text = f"Invalid '{param}': no message before it calls this function."
                raise invalid(message_text, param, "invalid_value")
            changed = {**message, "role": "tool", "tool_call_id": calls[name]}
        written.append(changed)
    return written
