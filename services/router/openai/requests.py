"""What the OpenAI API accepts. Unknown fields are ignored and counted; known fields of features that are not built,
and that would change the answer, are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from services.router.errors import ApiError, ErrorKind, invalid
from services.router.prompts import MAX_MESSAGES
from services.router.sampling import MAX_LOGPROBS, SamplingParams, StopConditions, check_ranges, check_stop_strings
from shared.placement import chat_key, named_key

_UINT64 = 2**64 - 1
# Across prompts and n.
MAX_CHOICES = 1024
DEFAULT_COMPLETION_TOKENS = 16

# Fields that change the answer and are not built: the values that ask for nothing, besides null.
_NOT_BUILT: dict[str, tuple[object, ...]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "suffix": ("",),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "include_stop_str_in_output": (False,),
    "prompt_logprobs": (),
    "prompt_embeds": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "logits_processors": ([],),
    "truncate_prompt_tokens": (),
    "chat_template": (),
    "documents": ([],),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
# Known, and without effect on the answer.
_WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls"}
    | {"prediction", "prompt_cache_retention", "reasoning_effort", "verbosity"}
)


def _string_or_array(value: object) -> str | None:
    return "#string" if isinstance(value, str) else "#array" if isinstance(value, list) else None


def _prompt_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "#string"
    if not isinstance(value, list):
        return None
    first = value[0] if value else None
    return "#strings" if isinstance(first, str) else "#token_lists" if isinstance(first, list) else "#tokens"


def _union(choose: Any, expected: str) -> Discriminator:
    """Picks a union's member by the value's shape, so that errors speak of that member alone."""
    return Discriminator(choose, custom_error_type="wrong_type", custom_error_message=expected)


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True)


class TextPart(_Body):
    type: Literal["text"]
    text: str


class FunctionCall(_Body):
    name: str
    arguments: str


class ToolCall(_Body):
    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            Annotated[str, Tag("#string")] | Annotated[list[TextPart], Tag("#array")],
            _union(_string_or_array, "a string or an array of text parts"),
        ]
        | None
    ) = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""

    def to_template(self) -> dict[str, Any]:
        """As chat templates expect it: text parts joined, absent fields absent."""
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        return message


class StreamOptions(_Body):
    include_usage: bool | None = None


class _Generation(_Body):
    """What chat and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1, le=128)
    stop: (
        Annotated[
            Annotated[str, Tag("#string")] | Annotated[list[str], Tag("#array")],
            _union(_string_or_array, "a string or an array of strings"),
        ]
        | None
    ) = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: int | None = Field(None, ge=-(2**63), le=_UINT64)
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    prompt_cache_key: str | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)

    def check(self, max_n: int) -> None:
        """What the schema cannot say. Raises ApiError."""
        extra = self.model_extra or {}
        for name, value in extra.items():
            allowed = _NOT_BUILT.get(name)
            if allowed is not None and value is not None and value not in allowed:
                message = f"'{name}' is not supported by this server yet. Remove it from your request."
                raise ApiError(ErrorKind.UNSUPPORTED, message, name)
        if self.stream_options is not None and not self.stream:
            message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            raise invalid(message, "stream_options")
        if self.n is not None and self.n > max_n:
            message = (
                f"Invalid 'n': integer above maximum value. Expected a value <= {max_n}, but got {self.n} instead."
            )
            raise invalid(message, "n", "integer_above_max_value")
        check_stop_strings(self.stop_strings, "stop")

    @property
    def num_ignored_fields(self) -> int:
        return sum(name not in _NOT_BUILT and name not in _WITHOUT_EFFECT for name in self.model_extra or ())

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def affinity(self, model: str) -> bytes:
        """What brings requests together whose prompts begin alike; empty: the prompt itself."""
        return named_key(model, self.prompt_cache_key) if self.prompt_cache_key else b""

    def stop_conditions(self) -> StopConditions:
        return StopConditions(None, tuple(self.stop_token_ids or ()), bool(self.ignore_eos))

    def sampling_params(self, logprobs: int | None) -> SamplingParams:
        """Raises ApiError where a value is out of its range once it is as precise as the model takes it."""
        given = SamplingParams(
            temperature=self.temperature,
            # vLLM's -1 is proto's 0: keep all.
            top_k=None if self.top_k is None else max(0, self.top_k),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=_logit_bias(self.logit_bias or {}),
            seed=None if self.seed is None else self.seed & _UINT64,
            logprobs=logprobs,
        )
        return check_ranges(given)


class ChatCompletionRequest(_Generation):
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self, max_n: int) -> None:
        super().check(max_n)
        check_messages(self.messages)
        if self.top_logprobs and not self.logprobs:
            raise invalid("Invalid 'top_logprobs': it needs 'logprobs' to be true.", "top_logprobs")
        if (
            self.continue_final_message
            and self.add_generation_prompt
            and "add_generation_prompt" in self.model_fields_set
        ):
            message = "'continue_final_message' and 'add_generation_prompt' exclude each other."
            raise invalid(message, "continue_final_message")

    def affinity(self, model: str) -> bytes:
        turns = ((message.role, message.text) for message in self.messages)
        return super().affinity(model) or chat_key(model, self.cache_salt or "", turns)

    @property
    def limit(self) -> tuple[int | None, str]:
        """The most tokens to generate, and the field that said so."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(_Generation):
    prompt: Annotated[
        Annotated[str, Tag("#string")]
        | Annotated[list[str], Tag("#strings")]
        | Annotated[list[int], Tag("#tokens")]
        | Annotated[list[list[int]], Tag("#token_lists")],
        _union(_prompt_kind, "a string, an array of strings, token ids or arrays of token ids"),
    ]
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1)

    def check(self, max_n: int) -> None:
        super().check(max_n)
        if not self.prompt and not isinstance(self.prompt, str):
            raise invalid("Invalid 'prompt': it must not be empty.", "prompt", "empty_array")
        num_choices = (len(self.texts) + len(self.token_prompts)) * (self.n or 1)
        if num_choices > MAX_CHOICES:
            raise invalid(f"Invalid 'prompt': it asks for {num_choices} answers; {MAX_CHOICES} at most.", "prompt")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ApiError(
                ErrorKind.UNSUPPORTED, "'best_of' other than 'n' is not supported by this server.", "best_of"
            )
        if self.echo and self.logprobs is not None:
            message = "'logprobs' together with 'echo' is not supported by this server yet."
            raise ApiError(ErrorKind.UNSUPPORTED, message, "logprobs")

    @property
    def texts(self) -> list[str]:
        """The prompts, if they are texts."""
        given: Any = self.prompt
        if isinstance(given, str):
            return [given]
        return given if isinstance(given[0], str) else []

    @property
    def token_prompts(self) -> list[list[int]]:
        """The prompts, if they are token ids."""
        given: Any = self.prompt
        if isinstance(given[:1], str) or isinstance(given[0], str):
            return []
        return [given] if isinstance(given[0], int) else given

    def param(self, index: int) -> str:
        """The name of prompt `index` in errors."""
        return "prompt" if isinstance(self.prompt, str) or isinstance(self.prompt[0], int) else f"prompt[{index}]"


class TokenizeRequest(_Body):
    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(_Body):
    model: str | None = None
    tokens: list[int]


def check_messages(messages: list[ChatMessage]) -> None:
    """Raises ApiError where a message has neither content nor tool calls."""
    for index, message in enumerate(messages):
        if message.content is None and not message.tool_calls:
            param = f"messages[{index}].content"
            raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def _logit_bias(entries: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    bias = []
    for key, value in entries.items():
        # Longer numbers are no token's id; shorter ones are checked against the vocabulary later.
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            message = f"Invalid key in 'logit_bias': {key[:32]!r}. Expected a token id."
            raise invalid(message, "logit_bias", "invalid_value")
        bias.append((int(key), value))
    return tuple(bias)
