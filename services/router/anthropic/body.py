"""The bodies of /v1/messages and /v1/messages/count_tokens. Unknown fields are ignored and counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from services.router.anthropic.blocks import StringOrTexts, text_of
from services.router.anthropic.context_management import ContextManagement
from services.router.anthropic.errors import ThreadUnsupportedError
from services.router.anthropic.messages import Turn, shown_turns
from services.router.chat.request import ChatRequest
from services.router.chat.thinking import thinking_kwargs
from services.router.chat.thinking_budget import ThinkingBudget
from services.router.chat.tools import AS_IT_LIKES, Tool, ToolChoice, ToolMode, ToolPath
from services.router.errors import ApiError, ErrorKind, invalid
from services.router.openai.body import Body
from services.router.options import GenerationOptions
from services.router.prompts import MAX_MESSAGES
from services.router.sampling import SamplingParams, StopConditions, check_ranges, check_stop_strings
from services.router.structure import Structure, StructureKind

# As in Body.not_built.
_NOT_BUILT: dict[str, tuple[object, ...]] = {"container": ("",), "mcp_servers": ([],)}
# Known, and without effect on the answer: they concern the provider's caches, tiers, bills and other models.
_WITHOUT_EFFECT = frozenset(
    {"metadata", "service_tier", "cache_control", "inference_geo", "diagnostics", "speed", "billing_policy"}
    | {"fallbacks", "fallback_credit_token"}
)
_MODES = {"auto": ToolMode.AUTO, "any": ToolMode.REQUIRED, "tool": ToolMode.NAMED, "none": ToolMode.NONE}


class AnthropicTool(Body):
    known_extras = frozenset({"cache_control", "defer_loading", "eager_input_streaming"})

    name: str = Field(min_length=1, max_length=128, description="By which it is called.")
    type: str | None = Field(None, description="`custom`, or left out; others are refused by name.")
    description: str | None = Field(None, description="What it does, for the model.")
    input_schema: dict[str, Any] | None = Field(None, description="A JSON schema of its input, and required.")
    strict: bool | None = Field(None, description="Without effect where calls are forced: inputs match the schema.")
    input_examples: list[dict[str, Any]] | None = Field(
        None, description="Inputs that the model sees as `examples` of the schema."
    )
    allowed_callers: list[str] | None = Field(
        None, description="`direct` must be among them: the model alone calls tools here."
    )

    def to_tool(self, param: str) -> Tool:
        """`param`: its name in errors. Raises ApiError."""
        if self.type not in (None, "custom"):
            message = f"Invalid '{param}.type': the tool '{self.type[:64]}' is not supported by this server."
            raise ApiError(ErrorKind.UNSUPPORTED, message, f"{param}.type")
        if self.allowed_callers is not None and "direct" not in self.allowed_callers:
            message = (
                f"Invalid '{param}.allowed_callers': this server runs no code that could call tools. Add 'direct'."
            )
            raise ApiError(ErrorKind.UNSUPPORTED, message, f"{param}.allowed_callers")
        if self.input_schema is None:
            missing = f"{param}.input_schema"
            raise invalid(f"Missing required parameter: '{missing}'.", missing, "missing_required_parameter")
        schema = self.input_schema
        if self.input_examples:
            schema = schema | {"examples": self.input_examples}
        return Tool(self.name, self.description or "", schema, bool(self.strict))


class AnthropicToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"] = Field(
        description="`auto`, `any` for a call in any case, `tool` for a certain one, `none`."
    )
    name: str | None = Field(None, description="Of `tool`: which is called.")
    disable_parallel_tool_use: bool | None = Field(None, description="True: one call at most where calls are forced.")


class Thinking(Body):
    # What becomes of thinking that another conversation made: it is told to the template like any other.
    known_extras = frozenset({"block_binding"})

    type: Literal["enabled", "disabled", "adaptive", "between_tools"] = Field(
        description="`disabled` turns thinking off where the template can, the others turn it on."
    )
    budget_tokens: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="The longest thinking, in tokens. Without effect where the model does not think.",
    )
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="`omitted` leaves the text of thinking out."
    )


class JsonFormat(Body):
    type: Literal["json_schema"] = Field(description="There is one kind.")
    schema_: dict[str, Any] = Field(alias="schema", description="The JSON schema that the answer matches.")

    def structure(self) -> Structure:
        return Structure(StructureKind.JSON_SCHEMA, json.dumps(self.schema_), "output_config.format.schema")


class OutputConfig(Body):
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {"task_budget": ()}

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(None, description="Told to the template.")
    format: JsonFormat | None = Field(None, description="What the answer looks like.")


class CountTokensBody(Body):
    """What makes the prompt."""

    # `compaction` says what an answer is made of; a count is that of the conversation as it is.
    known_extras = _WITHOUT_EFFECT | {"compaction", "thread"}
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = _NOT_BUILT

    model: str = Field(description="A served name or alias.")
    messages: list[Turn] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        description="The conversation. The answer goes on with a last turn of the assistant's.",
    )
    system: StringOrTexts | None = Field(None, description="A text or text blocks, before the conversation.")
    tools: list[AnthropicTool] | None = Field(None, description="Functions that the model may call.")
    tool_choice: AnthropicToolChoice | None = Field(None, description="Whether and which it calls.")
    thinking: Thinking | None = Field(None, description="Whether it thinks first; left out: as the template has it.")
    output_config: OutputConfig | None = Field(None, description="How hard it tries, and what the answer looks like.")
    output_format: JsonFormat | None = Field(None, description="The older name of `output_config.format`.")
    context_management: ContextManagement | None = Field(
        None, description="Which earlier thinking the model does not see again; edits of other kinds are refused."
    )

    def to_chat(self) -> ChatRequest:
        """Raises ApiError."""
        # An SDK that learns that there are no threads sends the whole conversation instead.
        if (self.model_extra or {}).get("thread") is not None:
            raise ThreadUnsupportedError.of("thread")
        messages = self._messages()
        # The answer goes on from what the last turn says, if it is the assistant's.
        is_prefilled = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
        thinks = None if self.thinking is None else self.thinking.type != "disabled"
        effort = None if self.output_config is None else self.output_config.effort
        tools = self._tools()
        return ChatRequest(
            model=self.model,
            messages=messages,
            options=self._options(),
            tools=tools,
            tool_choice=self._tool_choice(tools),
            add_generation_prompt=not is_prefilled,
            continue_final_message=is_prefilled,
            template_kwargs=thinking_kwargs(thinks, effort),
            thinking_budget=self._thinking_budget(),
            tool_path=ToolPath("tools[{}]", "input_schema"),
            clamps_max_tokens=True,
        )

    def _thinking_budget(self) -> ThinkingBudget | None:
        thinking = self.thinking
        if thinking is None or thinking.type == "disabled" or thinking.budget_tokens is None:
            return None
        # Clients send it to every model.
        return ThinkingBudget(thinking.budget_tokens, "thinking.budget_tokens", is_optional=True)

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": text_of(self.system, "system")})
        made: set[str] = set()
        thoughtless = frozenset[int]()
        if self.context_management is not None:
            thoughtless = self.context_management.thoughtless(self.messages)
        for index, turn in shown_turns(self.messages):
            messages += turn.to_template(f"messages[{index}]", made, shows_thinking=index not in thoughtless)
        return messages

    def _tools(self) -> tuple[Tool, ...]:
        return tuple(tool.to_tool(f"tools[{index}]") for index, tool in enumerate(self.tools or ()))

    def _tool_choice(self, tools: tuple[Tool, ...]) -> ToolChoice:
        choice = self.tool_choice
        if choice is None:
            return AS_IT_LIKES
        mode = _MODES[choice.type]
        if mode is ToolMode.NAMED and choice.name not in {tool.name for tool in tools}:
            raise invalid("Invalid 'tool_choice.name': none of 'tools' has this name.", "tool_choice.name")
        if mode is ToolMode.REQUIRED and not tools:
            raise invalid("Invalid 'tool_choice': there are no 'tools' to use.", "tool_choice")
        name = choice.name or "" if mode is ToolMode.NAMED else ""
        return ToolChoice(mode, name, parallel=not choice.disable_parallel_tool_use)

    def _options(self) -> GenerationOptions:
        return GenerationOptions(SamplingParams(), StopConditions())


class MessagesBody(CountTokensBody):
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = _NOT_BUILT | {"compaction": ()}

    max_tokens: int = Field(
        ge=1, description="The longest answer, in tokens; what the context leaves where that is less."
    )
    stream: bool | None = Field(None, description="Whether the answer comes as server-sent events.")
    stop_sequences: list[str] | None = Field(
        None, description="Up to 16 strings of at most 512 characters, any of which ends the answer."
    )
    temperature: float | None = Field(
        None, ge=0, le=1, description="Divides the logits before a token is drawn; 0 takes the likeliest."
    )
    top_p: float | None = Field(
        None,
        ge=0,
        le=1,
        description=(
            "Draws from the fewest likeliest tokens whose probabilities sum to this; 0 keeps the likeliest alone."
        ),
    )
    top_k: Annotated[int, Field(ge=0, le=2**31)] | None = Field(
        None, description="Draws from so many of the likeliest tokens; 0 keeps all."
    )

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.display != "omitted"

    def _options(self) -> GenerationOptions:
        stop_strings = tuple(self.stop_sequences or ())
        check_stop_strings(stop_strings, "stop_sequences")
        sampling = SamplingParams(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)
        form = self.output_format if self.output_config is None else self.output_config.format or self.output_format
        return GenerationOptions(
            sampling=check_ranges(sampling),
            stop=StopConditions(self.max_tokens),
            stop_strings=stop_strings,
            structure=None if form is None else form.structure(),
        )
