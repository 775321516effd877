"""The answers of OpenAI's API and of vLLM's paths beside it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from services.router.openapi.operation import Reply, may_lack

Seconds = Annotated[int, Field(description="Seconds since the epoch.")]


class PromptTokensDetails(Reply):
    cached_tokens: int = Field(description="Prompt tokens that were found in the prefix cache.")


class CompletionTokensDetails(Reply):
    reasoning_tokens: int = Field(description="Of `completion_tokens`, those of the model's reasoning.")


class Usage(Reply):
    prompt_tokens: int
    completion_tokens: int = Field(description="Up to and including the token that completed a stop string.")
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class PromptTokenLogprob(Reply):
    """Of one candidate at one place of a prompt."""

    logprob: float = Field(description="-9999 for a token out of reach.")
    rank: int = Field(description="How many tokens are likelier, plus 1.")
    decoded_token: str


# By token id: the prompt's own token and the likeliest. Null for the first one, of which nothing is known.
PromptLogprobs = list[dict[str, PromptTokenLogprob] | None]
StopReason = Annotated[
    str | int | None,
    Field(description="The stop string or token of the request that ended it, if one of these did."),
]


class TopLogprob(Reply):
    token: str
    logprob: float = Field(description="-9999 for a token out of reach.")
    bytes: list[int] = Field(description="UTF-8; a token may be a piece of a character.")


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


StreamUsage = Annotated[
    Usage | None,
    Field(
        description="With `stream_options.include_usage`: of the last chunk, else null; with `continuous_usage_stats` "
        "also, so far, of every other one."
    ),
]


class ChatLogprobs(Reply):
    content: list[TokenLogprob]
    refusal: None


class CallOfFunction(Reply):
    name: str
    arguments: str = Field(description="JSON, as the model wrote it.")


class CallOfTool(Reply):
    id: str
    type: Literal["function"]
    function: CallOfFunction


class AssistantMessage(Reply):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[CallOfTool] = may_lack("Where the message makes some.")
    function_call: CallOfFunction = may_lack("With `functions`: the call that the message makes.")
    reasoning_content: str = may_lack("Where the model reasoned before it answered.")
    reasoning: str | None = Field(description="The same as `reasoning_content`; null where the model did not reason.")


class ChatChoice(Reply):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    stop_reason: StopReason
    token_ids: list[int] | None = Field(description="With `return_token_ids`: of the output.")


class ChatCompletion(Reply):
    id: str
    object: Literal["chat.completion"]
    created: Seconds
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str = Field(description="Changes when what answers changes.")
    prompt_logprobs: PromptLogprobs | None = Field(
        None, description="Null unless they were asked for; an answer to several conversations has none."
    )
    prompt_token_ids: list[int] | None = Field(
        None, description="With `return_token_ids`; an answer to several conversations has none."
    )


class CallOfFunctionDelta(Reply):
    name: str = may_lack("In the first delta of a call.")
    arguments: str = Field(description="What is new of them.")


class CallOfToolDelta(Reply):
    index: int = Field(description="Counts the calls of one message.")
    id: str = may_lack("In the first delta of a call.")
    type: Literal["function"] = may_lack("In the first delta of a call.")
    function: CallOfFunctionDelta


class ChatDelta(Reply):
    role: Literal["assistant"] = Field("assistant", description="In the first delta of a choice.")
    content: str | None = Field(
        None,
        description="What is new of the text; null in the first delta of a choice that may begin with something else.",
    )
    tool_calls: list[CallOfToolDelta] = may_lack("What is new of the calls.")
    function_call: CallOfFunctionDelta = may_lack("With `functions`: what is new of the call.")
    reasoning_content: str = may_lack("What is new of the model's reasoning.")
    reasoning: str = may_lack("The same as `reasoning_content`.")


class ChatChunkChoice(Reply):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None
    stop_reason: StopReason = None
    token_ids: list[int] = may_lack("With `return_token_ids`: those that are new.")


class ChatCompletionChunk(Reply):
    id: str
    object: Literal["chat.completion.chunk"]
    created: Seconds
    model: str
    choices: list[ChatChunkChoice] = Field(description="Empty in the chunk that has the usage.")
    usage: StreamUsage = None
    system_fingerprint: str
    prompt_token_ids: list[int] = may_lack("With `return_token_ids`: in the first chunk.")


class CompletionLogprobs(Reply):
    """Null for the first token of a prompt that is echoed, of which nothing is known."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionExtras(Reply):
    """What vLLM's streamed choices have besides OpenAI's."""

    stop_reason: StopReason = None
    token_ids: list[int] = may_lack("With `return_token_ids`: of the output, those that are new.")
    prompt_token_ids: list[int] = may_lack("With `return_token_ids`: the first time.")
    prompt_logprobs: PromptLogprobs = may_lack("Where they were asked for.")


class CompletionChoice(Reply):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: StopReason
    token_ids: list[int] | None = Field(description="With `return_token_ids`: of the output.")
    prompt_token_ids: list[int] | None = Field(description="With `return_token_ids`.")
    prompt_logprobs: PromptLogprobs | None = Field(description="Null unless they were asked for.")


class Completion(Reply):
    id: str
    object: Literal["text_completion"]
    created: Seconds
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str


class CompletionChunkChoice(CompletionExtras):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionChunk(Reply):
    id: str
    object: Literal["text_completion"]
    created: Seconds
    model: str
    choices: list[CompletionChunkChoice] = Field(description="Empty in the chunk that has the usage.")
    usage: StreamUsage = None
    system_fingerprint: str


class ModelCard(Reply):
    id: str
    object: Literal["model"]
    created: Seconds
    owned_by: str
    root: str = Field(description="The model that this name means.")
    parent: None
    max_model_len: int = Field(description="Tokens of prompt and output together, at most.")
    tasks: list[Literal["generate", "embed"]] = Field(description="What it can do.")


class ModelList(Reply):
    object: Literal["list"]
    data: list[ModelCard]


class TokenizedPrompt(Reply):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokenizerInfo(Reply):
    """The model's tokenizer_config.json, whatever it has, and:"""

    model_config = ConfigDict(strict=True, extra="allow")

    tokenizer_class: str
    chat_template: str | None = Field(description="Jinja; null where the model has none.")
    max_model_len: int


class DetokenizedPrompt(Reply):
    prompt: str


class Nothing(Reply):
    """An empty object."""


class Version(Reply):
    version: str


class Health(Reply):
    status: Literal["ok"]
