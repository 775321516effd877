"""The operations of OpenAI's Responses API, for the OpenAPI document."""

from __future__ import annotations

from services.router.apis.responses.body import InputTokensBody, ResponseBody
from services.router.apis.responses.replies import InputTokenCount, Response, ResponseEvent
from services.router.http import Example, Operation

_TAG = "OpenAI's responses"
_MODEL = "quire-chat"
_QUESTION = "What is 7 plus 5?"
_ADD = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
    },
}  # fmt: skip

OPERATIONS = (
    Operation(
        "POST", "/v1/responses", "createResponse", _TAG, "Answers a conversation",
        "OpenAI's Responses API, with text and functions. Responses are not stored: to continue a conversation, send "
        "all of its items in `input`. The last event of a stream is `response.completed`, `response.incomplete` or "
        "`response.failed`.",
        body=ResponseBody, reply=Response, event=ResponseEvent,
        examples=(
            Example("A question", {"model": _MODEL, "input": _QUESTION, "max_output_tokens": 16}),
            Example(
                "Streamed",
                {
                    "model": _MODEL, "instructions": "Be brief.", "input": [{"role": "user", "content": _QUESTION}],
                    "max_output_tokens": 16, "temperature": 0, "stream": True,
                },
            ),
            Example(
                "A function that must be called",
                {"model": _MODEL, "input": _QUESTION, "tools": [_ADD], "tool_choice": "required"},
            ),
        ),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/v1/responses/input_tokens", "countInputTokens", _TAG, "Counts a conversation's tokens",
        "Counts the tokens of the prompt that the request would have.", body=InputTokensBody, reply=InputTokenCount,
        examples=(Example("A question", {"model": _MODEL, "input": _QUESTION}),),
        names_model=True, may_overload=True,
    ),
    Operation(
        "GET", "/v1/responses/{response_id}", "retrieveResponse", _TAG, "Always answers 404",
        "Responses are not stored, so none can be retrieved.",
        parameters={"response_id": "The id of a response."}, is_always_missing=True,
    ),
)  # fmt: skip
