"""The answers of OpenAI's API and of vLLM's paths beside it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.router.openapi.operation import Reply

Seconds = Annotated[int, Field(description="Seconds since the epoch.")]


class PromptTokensDetails(Reply):
    cached_tokens: int = Field(description="Prompt tokens that were found in the prefix cache.")


class Usage(Reply):
    prompt_tokens: int
    completion_tokens: int = Field(description="Up to and including the token that completed a stop string.")
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(Reply):
    token: str
    logprob: float = Field(description="-9999 for a token out of reach.")
    bytes: list[int] = Field(description="UTF-8; a token may be a piece of a character.")


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Reply):
    content: list[TokenLogprob]
    refusal: None


class AssistantMessage(Reply):
    role: Literal["assistant"]
    content: str | None
    refusal: None


class ChatChoice(Reply):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(Reply):
    id: str
    object: Literal["chat.completion"]
    created: Seconds
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str = Field(description="Changes when what answers changes.")


class ChatDelta(Reply):
    role: Literal["assistant"] = Field("assistant", description="In the first delta of a choice.")
    content: str = Field("", description="What is new of the text.")


class ChatChunkChoice(Reply):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class ChatCompletionChunk(Reply):
    id: str
    object: Literal["chat.completion.chunk"]
    created: Seconds
    model: str
    choices: list[ChatChunkChoice] = Field(description="Empty in the chunk that has the usage.")
    usage: Usage | None = Field(None, description="With `stream_options.include_usage`: of the last chunk, else null.")
    system_fingerprint: str


class CompletionLogprobs(Reply):
    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class CompletionChoice(Reply):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(Reply):
    id: str
    object: Literal["text_completion"]
    created: Seconds
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str


class CompletionChunkChoice(Reply):
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
    usage: Usage | None = Field(None, description="With `stream_options.include_usage`: of the last chunk, else null.")
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


class DetokenizedPrompt(Reply):
    prompt: str


class Nothing(Reply):
    """An empty object."""


class Health(Reply):
    status: Literal["ok"]
