"""The operations of Anthropic's Messages API, for the OpenAPI document."""

from __future__ import annotations

from services.router.apis.anthropic.body import CountTokensBody, MessagesBody
from services.router.apis.anthropic.replies import AnthropicError, AnthropicMessage, MessageEvent, TokenCount
from services.router.http import Example, Operation

_TAG = "Anthropic"
_MODEL = "quire-chat"
_QUESTION = [{"role": "user", "content": "What is 7 plus 5?"}]
_ADD = {
    "name": "add",
    "input_schema": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
    },
}  # fmt: skip

OPERATIONS = (
    Operation(
        "POST", "/v1/messages", "createMessage", _TAG, "Answers a conversation",
        "Anthropic's Messages API, with text and tools. The last event of a stream is `message_stop`, or `error` if "
        "the answer fails. The key may also be sent in the header `x-api-key`.",
        body=MessagesBody, reply=AnthropicMessage, event=MessageEvent, error=AnthropicError,
        examples=(
            Example("A question", {"model": _MODEL, "messages": _QUESTION, "max_tokens": 16}),
            Example(
                "Streamed",
                {
                    "model": _MODEL, "system": "Be brief.", "messages": _QUESTION, "max_tokens": 16, "temperature": 0,
                    "stream": True,
                },
            ),
            Example(
                "A tool that must be called",
                {
                    "model": _MODEL, "messages": _QUESTION, "max_tokens": 64, "tools": [_ADD],
                    "tool_choice": {"type": "any"},
                },
            ),
        ),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/v1/messages/count_tokens", "countMessageTokens", _TAG, "Counts a conversation's tokens",
        "Counts the tokens of the prompt that the request would have.",
        body=CountTokensBody, reply=TokenCount, error=AnthropicError,
        examples=(Example("A question", {"model": _MODEL, "messages": _QUESTION}),),
        names_model=True, may_overload=True,
    ),
)  # fmt: skip
