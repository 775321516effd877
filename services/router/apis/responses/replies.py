"""Types of the answers of /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from services.router.http import Reply, Seconds, TokenLogprob, may_lack

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Reply):
    type: Literal["output_text"]
    text: str
    annotations: list[None] = Field(description="Always empty: there are no citations.", max_length=0)
    logprobs: list[TokenLogprob] = Field(description="Log probabilities; empty unless the request asks for them.")


class ReasoningText(Reply):
    type: Literal["reasoning_text"]
    text: str


class OutputMessage(Reply):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[OutputText]


class ReasoningOutput(Reply):
    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[None] = Field(description="Always empty: reasoning is not summarized.", max_length=0)
    content: list[ReasoningText]


class FunctionCallOutput(Reply):
    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    arguments: str = Field(description="Arguments as JSON, as the model wrote them.")


OutputItem = Annotated[OutputMessage | ReasoningOutput | FunctionCallOutput, Field(discriminator="type")]
OutputPart = Annotated[OutputText | ReasoningText, Field(discriminator="type")]


class ResponseFault(Reply):
    code: Literal["rate_limit_exceeded", "server_error"]
    message: str


class IncompleteDetails(Reply):
    reason: Literal["max_output_tokens"]


class ReasoningEcho(Reply):
    effort: str | None
    summary: str | None


class FormatEcho(Reply):
    type: Literal["text", "json_object", "json_schema"]
    name: str = may_lack("Name of the schema.")
    description: str = may_lack("Purpose of the schema.")
    json_schema: dict[str, Any] = may_lack("The JSON schema.", alias="schema")
    strict: bool = may_lack("No effect: answers always match the schema.")


class TextEcho(Reply):
    format: FormatEcho
    verbosity: Literal["low", "medium", "high"] = may_lack("As in the request; absent if the request has none.")


class FunctionToolEcho(Reply):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class FunctionChoiceEcho(Reply):
    type: Literal["function"]
    name: str


class AllowedToolEcho(Reply):
    type: str
    name: str


class AllowedToolsEcho(Reply):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[AllowedToolEcho]


class CachedTokens(Reply):
    cached_tokens: int = Field(description="Number of prompt tokens that were found in the prefix cache.")
    cache_write_tokens: int


class ReasoningTokens(Reply):
    reasoning_tokens: int


class ResponseUsage(Reply):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class Response(Reply):
    """A response. Most fields repeat the request."""

    id: str
    object: Literal["response"]
    created_at: Seconds
    completed_at: Seconds | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[OutputItem]
    error: ResponseFault | None
    frequency_penalty: float
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsage | None = Field(description="Usage; null while the response is in progress, and if it failed.")
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: ReasoningEcho
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: Literal[False]
    temperature: float
    text: TextEcho
    tool_choice: Literal["none", "auto", "required"] | FunctionChoiceEcho | AllowedToolsEcho
    tools: list[FunctionToolEcho]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str = may_lack("As in the request; absent if the request has none.")


class InputTokenCount(Reply):
    object: Literal["response.input_tokens"]
    input_tokens: int


class _Event(Reply):
    sequence_number: int = Field(description="Number of the event in its stream.")


class ResponseStateEvent(_Event):
    """The response in its current state. The last event of a stream is of this kind: its type ends in `completed`,
    `incomplete` or `failed`."""

    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: Response


class OutputItemEvent(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _ItemEvent(_Event):
    item_id: str
    output_index: int


class _ContentEvent(_ItemEvent):
    content_index: int


class ContentPartEvent(_ContentEvent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputPart


class OutputTextDeltaEvent(_ContentEvent):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[TokenLogprob]


class OutputTextDoneEvent(_ContentEvent):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[TokenLogprob]


class ReasoningTextDeltaEvent(_ContentEvent):
    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningTextDoneEvent(_ContentEvent):
    type: Literal["response.reasoning_text.done"]
    text: str


class FunctionCallArgumentsDeltaEvent(_ItemEvent):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class FunctionCallArgumentsDoneEvent(_ItemEvent):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class ResponseEvent(
    RootModel[
        Annotated[
            ResponseStateEvent
            | OutputItemEvent
            | ContentPartEvent
            | OutputTextDeltaEvent
            | OutputTextDoneEvent
            | ReasoningTextDeltaEvent
            | ReasoningTextDoneEvent
            | FunctionCallArgumentsDeltaEvent
            | FunctionCallArgumentsDoneEvent,
            Field(discriminator="type"),
        ]
    ]
):
    """One event of a streamed response."""
