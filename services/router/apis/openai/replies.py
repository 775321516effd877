"""Types of the answers of OpenAI's API and of vLLM's additional paths."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from services.router.http import Reply, Seconds, TokenLogprob, may_lack


class PromptTokensDetails(Reply):
    cached_tokens: int = Field(description="Number of prompt tokens that were found in the prefix cache.")


class CompletionTokensDetails(Reply):
    reasoning_tokens: int = Field(description="Number of completion tokens that belong to the model's reasoning.")


class Usage(Reply):
    prompt_tokens: int
    completion_tokens: int = Field(
        description="Number of generated tokens, up to and including the one that completed a stop string."
    )
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class PromptTokenLogprob(Reply):
    """Log probability of one candidate token at one position of the prompt."""

    logprob: float = Field(description="Natural logarithm of the probability; at least -9999.")
    rank: int = Field(description="Rank of the token: 1 is the most likely.")
    decoded_token: str


# For each prompt token, an object with log probabilities, by token id: those of this token and of the most likely
# tokens. Null for the first token, which has no log probability.
PromptLogprobs = list[dict[str, PromptTokenLogprob] | None]
StopReason = Annotated[
    str | int | None,
    Field(description="The stop string or stop token id that ended the answer; null if neither did."),
]


StreamUsage = Annotated[
    Usage | None,
    Field(
        description="With `stream_options.include_usage`: the usage in the last chunk, null in other chunks. With "
        "`continuous_usage_stats`, other chunks have the usage so far."
    ),
]


class ChatLogprobs(Reply):
    content: list[TokenLogprob]
    refusal: None


class CallOfFunction(Reply):
    name: str
    arguments: str = Field(description="Arguments as JSON, as the model wrote them.")


class CallOfTool(Reply):
    id: str
    type: Literal["function"]
    function: CallOfFunction


class AssistantMessage(Reply):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[CallOfTool] = may_lack("Tool calls of the message, if there are any.")
    function_call: CallOfFunction = may_lack("With `functions`: the call of the message.")
    reasoning_content: str = may_lack("The model's reasoning, if there is any.")
    reasoning: str | None = Field(description="Equal to `reasoning_content`; null if the model did not reason.")


class ChatChoice(Reply):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    stop_reason: StopReason
    token_ids: list[int] | None = Field(description="With `return_token_ids`: token ids of the output.")


class ChatCompletion(Reply):
    id: str
    object: Literal["chat.completion"]
    created: Seconds
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str = Field(
        description="Identifies the backend configuration; changes when the model, its dtype or its tokenizer changes."
    )
    prompt_logprobs: PromptLogprobs | None = Field(
        None,
        description=(
            "Log probabilities of the prompt; null unless the request asks for them. Absent in answers to batches "
            "of conversations."
        ),
    )
    prompt_token_ids: list[int] | None = Field(
        None,
        description=(
            "With `return_token_ids`: token ids of the prompt. Absent in answers to batches of conversations."
        ),
    )


class CallOfFunctionDelta(Reply):
    name: str = may_lack("Name of the function; only in the first delta of a call.")
    arguments: str = Field(description="New part of the arguments.")


class CallOfToolDelta(Reply):
    index: int = Field(description="Index of the call in its message.")
    id: str = may_lack("Id of the call; only in the first delta of a call.")
    type: Literal["function"] = may_lack("Only in the first delta of a call.")
    function: CallOfFunctionDelta


class ChatDelta(Reply):
    role: Literal["assistant"] = Field("assistant", description="Only in the first delta of a choice.")
    content: str | None = Field(
        None,
        description=(
            "New part of the text; null in the first delta of a choice that may begin with reasoning or a call."
        ),
    )
    tool_calls: list[CallOfToolDelta] = may_lack("New parts of the calls.")
    function_call: CallOfFunctionDelta = may_lack("With `functions`: new part of the call.")
    reasoning_content: str = may_lack("New part of the model's reasoning.")
    reasoning: str = may_lack("Equal to `reasoning_content`.")


class ChatChunkChoice(Reply):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None
    stop_reason: StopReason = None
    token_ids: list[int] = may_lack("With `return_token_ids`: new token ids of the output.")


class ChatCompletionChunk(Reply):
    id: str
    object: Literal["chat.completion.chunk"]
    created: Seconds
    model: str
    choices: list[ChatChunkChoice] = Field(description="Empty in the chunk that has only the usage.")
    usage: StreamUsage = None
    system_fingerprint: str
    prompt_token_ids: list[int] = may_lack("With `return_token_ids`: token ids of the prompt; only in the first chunk.")


class CompletionLogprobs(Reply):
    """Log probabilities of the tokens; null for the first token of an echoed prompt, which has no log probability."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionExtras(Reply):
    """vLLM's additional fields of a streamed choice."""

    stop_reason: StopReason = None
    token_ids: list[int] = may_lack("With `return_token_ids`: new token ids of the output.")
    prompt_token_ids: list[int] = may_lack(
        "With `return_token_ids`: token ids of the prompt; only in the choice's first chunk."
    )
    prompt_logprobs: PromptLogprobs = may_lack("Log probabilities of the prompt, if the request asks for them.")


class CompletionChoice(Reply):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: StopReason
    token_ids: list[int] | None = Field(description="With `return_token_ids`: token ids of the output.")
    prompt_token_ids: list[int] | None = Field(description="With `return_token_ids`: token ids of the prompt.")
    prompt_logprobs: PromptLogprobs | None = Field(
        description="Log probabilities of the prompt; null unless the request asks for them."
    )


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
    choices: list[CompletionChunkChoice] = Field(description="Empty in the chunk that has only the usage.")
    usage: StreamUsage = None
    system_fingerprint: str


class ModelCard(Reply):
    id: str
    object: Literal["model"]
    created: Seconds
    owned_by: str
    root: str = Field(description="Name of the model that this alias stands for.")
    parent: None
    max_model_len: int = Field(description="Maximum number of tokens of prompt and output together.")
    tasks: list[Literal["generate", "embed", "classify"]] = Field(description="Tasks that the model supports.")


class ModelList(Reply):
    object: Literal["list"]
    data: list[ModelCard]


class TokenizedPrompt(Reply):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokenizerInfo(Reply):
    """All fields of the model's tokenizer_config.json, plus the fields listed here."""

    model_config = ConfigDict(strict=True, extra="allow")

    tokenizer_class: str
    chat_template: str | None = Field(description="Chat template in Jinja; null if the model has none.")
    max_model_len: int


class DetokenizedPrompt(Reply):
    prompt: str


class Nothing(Reply):
    """Always an empty object."""


class Version(Reply):
    version: str


class Health(Reply):
    status: Literal["ok"]
