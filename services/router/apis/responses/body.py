"""The bodies of /v1/responses and /v1/responses/input_tokens. Unknown fields are ignored; a metric counts them. Known
fields that are not implemented and would change the answer are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from services.router.apis.responses.items import Item, to_template
from services.router.apis.responses.tools import ResponseTool, StringOrToolChoice, choose
from services.router.chat import ChatRequest, Overflow, ToolPath, merged_kwargs
from services.router.errors import ApiError, ErrorKind, invalid
from services.router.generation import GenerationOptions
from services.router.grammar import Structure, StructureKind
from services.router.http import Body, SamplingFields, string_or_array, union
from services.router.parameters import MAX_LOGPROBS, SamplingParams, StopConditions, check_stop_strings
from services.router.prompt import MAX_MESSAGES

_MAX_METADATA = 16
LOGPROBS = "message.output_text.logprobs"
# Fields that are not implemented. Each has a list of values that are accepted like null, because these values have no
# effect.
_NOT_BUILT: dict[str, tuple[object, ...]] = {
    "background": (False,),
    "prompt": (),
    "context_management": ([],),
    "background_options": (),
    "moderation": (),
    "image": (),
    # vLLM's fields.
    "previous_input_messages": ([],),
    "previous_response": (),
    "enable_response_messages": (False,),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
    "watermarking": (False,),
    "logit_bias": ({},),
    "structured_outputs": (),
}
_NEEDS_A_STORE = ("previous_response_id", "conversation")
# Known fields without effect on the answer.
_WITHOUT_EFFECT = frozenset(
    {"store", "service_tier", "stream_options", "max_tool_calls", "prompt_cache_retention", "prompt_cache_options"}
    | {"access_programs", "request_id", "session_id", "vllm_xargs"}
)


StringOrStrings = Annotated[
    Annotated[str, Tag("#string")] | Annotated[list[str], Tag("#array")],
    union(string_or_array, "a string or an array of strings"),
]


class Format(Body):
    type: Literal["text", "json_object", "json_schema"] = Field(description="Format of the answer.")
    name: str | None = Field(None, description="Name of the schema; no effect.")
    description: str | None = Field(None, description="Purpose of the schema; no effect.")
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="The JSON schema; required for `json_schema`."
    )
    strict: bool | None = Field(None, description="No effect: answers always match the schema.")

    def echo(self) -> dict[str, Any]:
        """Returns the format as a JSON value. The response repeats it."""
        if self.type != "json_schema":
            return {"type": self.type}
        known = {"name", "description", "schema_", "strict"}
        return {"type": self.type, **self.model_dump(include=known, by_alias=True, exclude_none=True)}


class Text(Body):
    format: Format | None = Field(None, description="Format of the text.")
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description="No effect.")


class Reasoning(Body):
    # The older name of `summary`.
    known_extras = frozenset({"generate_summary"})
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "context": ("auto", "all_turns"),
        "mode": ("standard",),
    }

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None,
        description=(
            "Reasoning effort; passed to the chat template. `none` turns reasoning off, if the chat template can."
        ),
    )
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="No effect: reasoning is returned in full."
    )


class InputTokensBody(Body):
    """The fields that determine the prompt."""

    known_extras = frozenset(_NEEDS_A_STORE)
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {"personality": ()}

    model: str | None = Field(
        None, description="Name or alias of a served model. Default: that of `--default-model`, or the only one."
    )
    input: Annotated[
        Annotated[str, Tag("#string")]
        | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES), Tag("#array")],
        union(string_or_array, "a string or an array of items"),
    ] = Field(description="A text, or a list of items: messages, function calls, their results, reasoning.")
    instructions: str | None = Field(None, description="System message before the input.")
    tools: list[ResponseTool] | None = Field(None, description="Functions that the model may call, at most 128.")
    tool_choice: StringOrToolChoice | None = Field(
        None,
        description=(
            "Whether the model must call tools, and which: `none`, `auto`, `required`, a function, or `allowed_tools`."
        ),
    )
    parallel_tool_calls: bool | None = Field(None, description="If false, at most one call is returned.")
    text: Text | None = Field(None, description="Format of the text of the answer.")
    reasoning: Reasoning | None = Field(None, description="Options for the reasoning.")
    truncation: Literal["auto", "disabled"] | None = Field(
        None,
        description=(
            "What to do with input that does not fit in the context together with `max_output_tokens`. `auto`: drop "
            "the oldest turns until it fits; the last user message, the newest items and system messages stay. "
            "`disabled`, the default: refuse the request."
        ),
    )
    # vLLM's field.
    chat_template_kwargs: dict[str, Any] | None = Field(
        None,
        description="Additional arguments of the chat template; they cannot replace the template's own arguments.",
    )

    def check(self) -> None:
        """Checks constraints that the schema cannot express. Raises ApiError."""
        extra = self.model_extra or {}
        for name in _NEEDS_A_STORE:
            if extra.get(name) is not None:
                message = (
                    f"'{name}' is not supported: this server does not store responses. "
                    "Send the earlier items in 'input' instead."
                )
                raise ApiError(ErrorKind.UNSUPPORTED, message, name)

    def to_chat(self) -> ChatRequest:
        """Converts the body to a chat request. Raises ApiError."""
        text = self.input
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else to_template(text)
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
        all_tools = tuple(tool.to_tool(f"tools[{index}]") for index, tool in enumerate(self.tools or ()))
        tools, tool_choice = choose(self.tool_choice, all_tools, self.parallel_tool_calls is not False)
        return ChatRequest(
            model=self.model,
            messages=messages,
            options=self._options(),
            tools=tools,
            tool_choice=tool_choice,
            template_kwargs=self._template_kwargs(),
            messages_param="input",
            tool_path=ToolPath("tools[{}]"),
            max_tokens_param="max_output_tokens",
            overflow=Overflow.DROP_OLDEST if self.truncation == "auto" else Overflow.REFUSE,
        )

    def _template_kwargs(self) -> Mapping[str, Any] | None:
        effort = None if self.reasoning is None else self.reasoning.effort
        if effort is None:
            return self.chat_template_kwargs
        is_none = effort == "none"
        return merged_kwargs(not is_none, None if is_none else effort, self.chat_template_kwargs)

    def _options(self) -> GenerationOptions:
        return GenerationOptions(SamplingParams(), StopConditions(), structure=self._structure())

    def _structure(self) -> Structure | None:
        form = None if self.text is None else self.text.format
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            return Structure(StructureKind.JSON_OBJECT, "", "text.format")
        for name, value in (("name", form.name), ("schema", form.schema_)):
            if value is None:
                param = f"text.format.{name}"
                raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
        return Structure(StructureKind.JSON_SCHEMA, json.dumps(form.schema_), "text.format.schema")


class ResponseBody(InputTokensBody, SamplingFields):
    known_extras = InputTokensBody.known_extras | _WITHOUT_EFFECT
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = _NOT_BUILT

    max_output_tokens: int | None = Field(
        None, ge=1, description="Maximum number of tokens in the answer. Default: as many as fit in the context."
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Number of most likely tokens to return at each position.",
    )
    stream: bool | None = Field(None, description="Whether the answer is streamed as server-sent events.")
    metadata: dict[str, str] | None = Field(
        None, max_length=_MAX_METADATA, description="Up to 16 pairs; repeated in the answer."
    )
    include: list[str] | None = Field(
        None, description="`message.output_text.logprobs` adds log probabilities; other values have no effect."
    )
    user: str | None = Field(None, description="Repeated in the answer.")
    safety_identifier: str | None = Field(None, max_length=64, description="Repeated in the answer.")
    prompt_cache_key: str | None = Field(
        None, description="Requests with the same key go to the same scheduler, to find their prefixes in its cache."
    )
    # vLLM's fields.
    stop: StringOrStrings | None = Field(
        None,
        description=(
            "Stop strings: one or up to 16, each of at most 512 characters. The first one found ends the answer."
        ),
    )
    include_stop_str_in_output: bool | None = Field(
        None, description="Whether the text includes the stop string or stop token that ended it."
    )
    ignore_eos: bool | None = Field(None, description="Whether generation continues after the model's own end tokens.")
    skip_special_tokens: bool | None = Field(
        None, description="Whether special tokens are left out of the text. Default: true."
    )
    priority: int | None = Field(
        None,
        ge=-(2**31),
        lt=2**31,
        description="Scheduling priority, if the server schedules by priority; a lower value runs earlier.",
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="Requests share cached prefixes only with requests that have the same salt.",
    )

    @property
    def logprobs(self) -> int | None:
        wanted = self.top_logprobs is not None or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if wanted else None

    def check(self) -> None:
        super().check()
        check_stop_strings(self.stop_strings, "stop")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def _options(self) -> GenerationOptions:
        return GenerationOptions(
            sampling=self.sampling_params(logprobs=self.logprobs),
            stop=StopConditions(self.max_output_tokens, ignore_eos=bool(self.ignore_eos)),
            stop_strings=self.stop_strings,
            includes_stop=bool(self.include_stop_str_in_output),
            skip_special_tokens=self.skip_special_tokens is not False,
            structure=self._structure(),
            cache_salt=self.cache_salt or "",
            priority=self.priority or 0,
            prompt_cache_key=self.prompt_cache_key or "",
        )
