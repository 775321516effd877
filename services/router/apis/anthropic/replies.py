"""Types of the answers of Anthropic's Messages API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from services.router.http import Reply, may_lack


class TextContent(Reply):
    type: Literal["text"]
    text: str


class ThinkingContent(Reply):
    type: Literal["thinking"]
    thinking: str
    signature: str = Field(description="A fixed text; the server does not check it when it is sent back.")


class ToolUseContent(Reply):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Content = Annotated[TextContent | ThinkingContent | ToolUseContent, Field(discriminator="type")]
StopReason = Literal["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"]


class AnthropicUsage(Reply):
    input_tokens: int = Field(description="Prompt tokens that were computed. Cached tokens are counted separately.")
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessage(Reply):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: StopReason | None = Field(description="Null in the first event of a stream.")
    stop_sequence: str | None
    usage: AnthropicUsage


class MessageStartEvent(Reply):
    type: Literal["message_start"]
    message: AnthropicMessage


class PingEvent(Reply):
    type: Literal["ping"]


class ContentBlockStartEvent(Reply):
    type: Literal["content_block_start"]
    index: int
    content_block: Content


class TextDelta(Reply):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(Reply):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(Reply):
    type: Literal["signature_delta"]
    signature: str


class InputJsonDelta(Reply):
    type: Literal["input_json_delta"]
    partial_json: str


class ContentBlockDeltaEvent(Reply):
    type: Literal["content_block_delta"]
    index: int
    delta: Annotated[TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta, Field(discriminator="type")]


class ContentBlockStopEvent(Reply):
    type: Literal["content_block_stop"]
    index: int


class MessageEnd(Reply):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDeltaEvent(Reply):
    type: Literal["message_delta"]
    delta: MessageEnd
    usage: AnthropicUsage


class MessageStopEvent(Reply):
    type: Literal["message_stop"]


class MessageEvent(
    RootModel[
        Annotated[
            MessageStartEvent
            | PingEvent
            | ContentBlockStartEvent
            | ContentBlockDeltaEvent
            | ContentBlockStopEvent
            | MessageDeltaEvent
            | MessageStopEvent,
            Field(discriminator="type"),
        ]
    ]
):
    """One event of a streamed message."""


class AnthropicModel(Reply):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: str = Field(description="Time in RFC 3339 format.")
    lifecycle: Literal["active"]
    max_input_tokens: int = Field(description="Maximum number of tokens of prompt and output together.")
    max_tokens: int = Field(description="Equal to `max_input_tokens`.")


class AnthropicModelList(Reply):
    data: list[AnthropicModel]
    has_more: bool = Field(description="Whether the list goes on beyond this page.")
    first_id: str | None
    last_id: str | None


class TokenCount(Reply):
    input_tokens: int


class ThreadUnsupported(Reply):
    """Error details after which Anthropic's SDKs continue without a thread."""

    error_code: Literal["thread_unsupported_request"]
    unsupported: list[str]


class AnthropicErrorDetails(Reply):
    type: Literal[
        "invalid_request_error", "authentication_error", "not_found_error", "request_too_large", "rate_limit_error",
        "api_error", "overloaded_error", "timeout_error", "permission_error",
    ]  # fmt: skip
    message: str
    details: ThreadUnsupported = may_lack("Present if the request has a `thread`.")


class AnthropicError(Reply):
    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str = may_lack("Request id, as in the header `request-id`; absent in events of a stream.")
