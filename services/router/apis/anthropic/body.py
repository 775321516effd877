"""The request bodies of /v1/messages and /v1/messages/count_tokens. Unknown fields are ignored; a metric counts
them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from services.router.apis.anthropic.blocks import StringOrTexts, text_of
from services.router.apis.anthropic.context_management import ContextManagement
from services.router.apis.anthropic.errors import ThreadUnsupportedError
from services.router.apis.anthropic.messages import Turn, shown_turns
from services.router.chat import (
    AS_IT_LIKES,
    ChatRequest,
    ThinkingBudget,
    Tool,
    ToolChoice,
    ToolMode,
    ToolPath,
    merged_kwargs,
)
from services.router.errors import ApiError, ErrorKind, invalid
from services.router.generation import GenerationOptions
from services.router.grammar import Structure, StructureKind
from services.router.http import TEMPERATURE, Body, TopP, sampling_params
from services.router.parameters import SamplingParams, StopConditions, check_stop_strings
from services.router.prompt import MAX_MESSAGES

# Fields that are not implemented, each with its accepted values (see Body.not_built).
# `kv_transfer_params` is vLLM's.
_NOT_BUILT: dict[str, tuple[object, ...]] = {"container": ("",), "mcp_servers": ([],), "kv_transfer_params": ()}
# Known fields that are ignored. They control features of Anthropic's own service, such as its caching, service tiers,
# billing and fallback to other models.
_WITHOUT_EFFECT = frozenset(
    {"metadata", "service_tier", "cache_control", "inference_geo", "diagnostics", "speed", "billing_policy"}
    | {"fallbacks", "fallback_credit_token"}
)
_MODES = {"auto": ToolMode.AUTO, "any": ToolMode.REQUIRED, "tool": ToolMode.NAMED, "none": ToolMode.NONE}


class AnthropicTool(Body):
    known_extras = frozenset({"cache_control", "defer_loading", "eager_input_streaming"})

    name: str = Field(min_length=1, max_length=128, description="Name of the function.")
    type: str | None = Field(
        None, description="`custom`; can be left out. Other types are refused with an error that names them."
    )
    description: str | None = Field(None, description="Description of the function, for the model.")
    input_schema: dict[str, Any] | None = Field(None, description="JSON schema of the input; required.")
    strict: bool | None = Field(
        None,
        description=(
            "Whether the inputs of every call match the schema. Those of forced calls always do. No effect if the "
            "model writes inputs in a format other than JSON."
        ),
    )
    input_examples: list[dict[str, Any]] | None = Field(
        None, description="Example inputs; the model sees them as the schema's `examples`."
    )
    allowed_callers: list[str] | None = Field(
        None, description="Permitted callers of the tool. Must contain `direct`: here, only the model calls tools."
    )

    def to_tool(self, param: str) -> Tool:
        """Converts the tool to a `Tool`. `param`: path of the tool in the request, for error messages. Raises
        ApiError."""
        if self.type not in (None, "custom"):
            message = f"Invalid '{param}.type': the tool '{self.type[:64]}' is not supported by this server."
            raise ApiError(ErrorKind.UNSUPPORTED, message, f"{param}.type")
        if self.allowed_callers is not None and "direct" not in self.allowed_callers:
            message = f"Invalid '{param}.allowed_callers': on this server, only the model can call tools. Add 'direct'."
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
        description=(
            "`auto`: the model decides; `any`: at least one call; `tool`: a call of the named tool; `none`: no calls."
        )
    )
    name: str | None = Field(None, description="With `tool`: name of the tool to call.")
    disable_parallel_tool_use: bool | None = Field(None, description="If true, at most one call is returned.")


class Thinking(Body):
    # `block_binding` concerns reasoning from other conversations. It has no effect, because chat templates treat all
    # reasoning alike.
    known_extras = frozenset({"block_binding"})

    type: Literal["enabled", "disabled", "adaptive", "between_tools"] = Field(
        description="`disabled` turns reasoning off, if the chat template can; `enabled`, `adaptive` and "
        "`between_tools` turn it on: when to reason is up to the model."
    )
    budget_tokens: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="Maximum number of reasoning tokens. No effect if the model does not reason.",
    )
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="`omitted` leaves the text of the reasoning out of the answer."
    )


class JsonFormat(Body):
    type: Literal["json_schema"] = Field(description="Always `json_schema`.")
    schema_: dict[str, Any] = Field(alias="schema", description="JSON schema that the answer must match.")

    def structure(self) -> Structure:
        return Structure(StructureKind.JSON_SCHEMA, json.dumps(self.schema_), "output_config.format.schema")


class OutputConfig(Body):
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {"task_budget": ()}

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="Reasoning effort; passed to the chat template."
    )
    format: JsonFormat | None = Field(None, description="Format of the answer.")


class CountTokensBody(Body):
    """The fields that determine the prompt."""

    # `compaction` has no effect on the number of tokens, because the whole conversation is counted.
    known_extras = _WITHOUT_EFFECT | {"compaction", "thread"}
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = _NOT_BUILT

    model: str = Field(description="Name or alias of a served model.")
    messages: list[Turn] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        description="Messages of the conversation. If the last one is the assistant's, the answer continues it.",
    )
    system: StringOrTexts | None = Field(None, description="System message: a text or text blocks.")
    tools: list[AnthropicTool] | None = Field(None, description="Functions that the model may call, at most 128.")
    tool_choice: AnthropicToolChoice | None = Field(None, description="Whether the model must call tools, and which.")
    thinking: Thinking | None = Field(
        None, description="Whether the model reasons before it answers. Default: decided by the chat template."
    )
    output_config: OutputConfig | None = Field(None, description="Reasoning effort, and format of the answer.")
    output_format: JsonFormat | None = Field(None, description="Older name of `output_config.format`.")
    context_management: ContextManagement | None = Field(
        None, description="Removes earlier reasoning from the conversation; other kinds of edits are refused."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None,
        description="More arguments for the chat template; vLLM's extension. They take precedence over `thinking`.",
    )

    def to_chat(self) -> ChatRequest:
        """Converts the body to a chat request. Raises ApiError."""
        # A thread is refused with an error of its own. Anthropic's SDKs then send the whole conversation instead.
        if (self.model_extra or {}).get("thread") is not None:
            raise ThreadUnsupportedError.of("thread")
        messages = self._messages()
        # If the last turn is the assistant's and has no tool calls, the answer continues its text.
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
            template_kwargs=merged_kwargs(thinks, effort, self.chat_template_kwargs),
            thinking_budget=self._thinking_budget(),
            tool_path=ToolPath("tools[{}]", "input_schema"),
            clamps_max_tokens=True,
        )

    def _thinking_budget(self) -> ThinkingBudget | None:
        thinking = self.thinking
        if thinking is None or thinking.type == "disabled" or thinking.budget_tokens is None:
            return None
        # Clients send the budget to all models, also to those whose reasoning cannot be limited. With `is_optional`,
        # the budget has no effect on such a model.
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
            raise invalid("Invalid 'tool_choice.name': no tool in 'tools' has this name.", "tool_choice.name")
        if mode is ToolMode.REQUIRED and not tools:
            raise invalid("Invalid 'tool_choice': it requires a call, but 'tools' is empty.", "tool_choice")
        name = choice.name or "" if mode is ToolMode.NAMED else ""
        return ToolChoice(mode, name, parallel=not choice.disable_parallel_tool_use)

    def _options(self) -> GenerationOptions:
        return GenerationOptions(SamplingParams(), StopConditions())


class MessagesBody(CountTokensBody):
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = _NOT_BUILT | {"compaction": ()}

    max_tokens: int = Field(
        ge=1, description="Maximum number of tokens in the answer; fewer if they do not fit in the context."
    )
    stream: bool | None = Field(None, description="Whether the answer is streamed as server-sent events.")
    stop_sequences: list[str] | None = Field(
        None,
        description="Stop strings: up to 16, each of at most 512 characters. The first one found ends the answer.",
    )
    temperature: float | None = Field(None, ge=0, le=1, description=TEMPERATURE)
    top_p: TopP = None
    top_k: Annotated[int, Field(ge=0, le=2**31)] | None = Field(
        None, description="Samples from the k most likely tokens; 0 keeps all."
    )

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.display != "omitted"

    def _options(self) -> GenerationOptions:
        stop_strings = tuple(self.stop_sequences or ())
        check_stop_strings(stop_strings, "stop_sequences")
        form = self.output_format if self.output_config is None else self.output_config.format or self.output_format
        return GenerationOptions(
            sampling=sampling_params(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k),
            stop=StopConditions(self.max_tokens),
            stop_strings=stop_strings,
            structure=None if form is None else form.structure(),
        )
