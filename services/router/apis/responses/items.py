"""The items of a request's `input`, and their conversion to messages for chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from services.router.chat import check_call_made, thought
from services.router.errors import ApiError, ErrorKind, invalid
from services.router.http import Body, string_or_array, union

# Fields of output items. Input items can have them, because clients send output items back as input.
_OF_ITEMS = frozenset({"id", "status"})


class Part(Body):
    """A part of an item's content: a refusal, or a text with any of OpenAI's types of text parts."""

    known_extras = frozenset({"annotations", "logprobs", "prompt_cache_breakpoint"})

    type: str = Field(description="Type of the part: a text, or a refusal.")
    text: str | None = Field(None, description="Text of a text part.")
    refusal: str | None = Field(None, description="Text of a refusal.")


_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
StringOrParts = Annotated[
    Annotated[str, Tag("#string")] | Annotated[list[Part], Tag("#array")],
    union(string_or_array, "a string or an array of text parts"),
]


class MessageItem(Body):
    known_extras = _OF_ITEMS | {"phase"}

    type: Literal["message"] = Field("message", description="Can be left out.")
    role: Literal["user", "assistant", "system", "developer"] = Field(description="Role of the author.")
    content: StringOrParts = Field(description="A text, or a list of text parts.")


class FunctionCallItem(Body):
    known_extras = _OF_ITEMS | {"caller", "namespace", "async"}

    type: Literal["function_call"] = Field(description="The type of an item with a function call.")
    call_id: str = Field(description="Id of the call, to which its result refers.")
    name: str = Field(description="Name of the function.")
    arguments: str = Field(description="Arguments as JSON, as the model wrote them.")


class FunctionCallOutputItem(Body):
    known_extras = _OF_ITEMS | {"caller", "namespace", "name"}

    type: Literal["function_call_output"] = Field(description="The type of an item with the result of a function call.")
    call_id: str = Field(description="Id of the call that this is the result of.")
    output: StringOrParts = Field(description="A text, or a list of text parts.")


class ReasoningItem(Body):
    """Reasoning from an earlier response. If the response is from another server, the reasoning's text can be missing;
    then the summary is used."""

    known_extras = _OF_ITEMS | {"encrypted_content"}

    type: Literal["reasoning"] = Field(description="The type of an item with the assistant's reasoning.")
    summary: list[Part] = Field(
        default_factory=list, description="Summary of the reasoning; used if there is no content."
    )
    content: list[Part] | None = Field(None, description="Text of the reasoning.")


class OtherItem(Body):
    type: str = Field(description="Not supported.")


_KINDS = ("message", "function_call", "function_call_output", "reasoning")


def _tag(value: object) -> str | None:
    if not isinstance(value, dict):
        return None
    kind = value.get("type", "message")
    return (f"#{kind}" if kind in _KINDS else "#other") if isinstance(kind, str) else None


Item = Annotated[
    Annotated[MessageItem, Tag("#message")]
    | Annotated[FunctionCallItem, Tag("#function_call")]
    | Annotated[FunctionCallOutputItem, Tag("#function_call_output")]
    | Annotated[ReasoningItem, Tag("#reasoning")]
    | Annotated[OtherItem, Tag("#other")],
    union(_tag, "an object with a 'type'"),
]


def to_template(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Converts items to messages. Consecutive items of the assistant (reasoning, text, calls) become one message. A
    second text begins a new message, and so does reasoning that follows a text or a call. Raises ApiError."""
    messages: list[dict[str, Any]] = []
    # The message to which the assistant's next items are added; None: they begin a new message.
    turn: dict[str, Any] | None = None
    made: set[str] = set()
    for index, item in enumerate(items):
        param = f"input[{index}]"
        match item:
            case MessageItem(role="assistant"):
                turn = _turn(messages, turn if turn is None or not turn["content"] else None)
                turn["content"] = _text(item.content, f"{param}.content")
            case MessageItem():
                turn = None
                messages.append({"role": item.role, "content": _text(item.content, f"{param}.content")})
            case ReasoningItem():
                # Reasoning begins a new turn, unless the current turn has only reasoning so far.
                is_fresh = turn is None or bool(turn["content"]) or "tool_calls" in turn
                turn = _turn(messages, None if is_fresh else turn)
                thought(turn, _text(item.content or item.summary, f"{param}.content"))
            case FunctionCallItem():
                turn = _turn(messages, turn)
                made.add(item.call_id)
                function = {"name": item.name, "arguments": item.arguments}
                turn.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
            case FunctionCallOutputItem():
                turn = None
                check_call_made(item.call_id, made, f"{param}.call_id")
                output = _text(item.output, f"{param}.output")
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": output})
            case _:
                raise _not_supported(item.type, param)
    return messages


def _turn(messages: list[dict[str, Any]], turn: dict[str, Any] | None) -> dict[str, Any]:
    if turn is None:
        turn = {"role": "assistant", "content": ""}
        messages.append(turn)
    return turn


def _text(content: str | Sequence[Part], param: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type != "refusal" and part.type not in _TEXT_PARTS:
            message = f"Invalid '{param}[{index}].type': parts of type '{part.type[:64]}' are not supported."
            raise ApiError(ErrorKind.UNSUPPORTED, message, f"{param}[{index}].type")
        if text is None:
            missing = f"{param}[{index}].{'refusal' if part.type == 'refusal' else 'text'}"
            raise invalid(f"Missing required parameter: '{missing}'.", missing, "missing_required_parameter")
        texts.append(text)
    return "\n".join(texts)


def _not_supported(kind: str, param: str) -> ApiError:
    if kind == "item_reference":
        message = f"Invalid '{param}.type': this server does not store items. Send the item itself."
    else:
        message = f"Invalid '{param}.type': items of type '{kind[:64]}' are not supported by this server."
    return ApiError(ErrorKind.UNSUPPORTED, message, f"{param}.type")
