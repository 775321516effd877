"""/v1/chat/completions: its body, and its answers, streamed and whole."""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from services.router.answers import EVENT_STREAM
from services.router.chat.message import Message, MessageDelta
from services.router.chat.request import ChatRequest
from services.router.errors import ApiError, invalid
from services.router.generation import Usage
from services.router.openai.body import Body, GenerationBody, string_or_array
from services.router.openai.json import AnswerHead, chat_logprobs, dump, dumps, end_of_stream, error_event
from services.router.openai.union import union
from services.router.prompts import MAX_MESSAGES
from services.router.sampling import MAX_LOGPROBS


class TextPart(Body):
    type: Literal["text"]
    text: str


class FunctionCall(Body):
    name: str
    arguments: str


class ToolCall(Body):
    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            Annotated[str, Tag("#string")] | Annotated[list[TextPart], Tag("#array")],
            union(string_or_array, "a string or an array of text parts"),
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


class ChatCompletionRequest(GenerationBody):
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

    def to_chat(self) -> ChatRequest:
        """Raises ApiError."""
        limit, limit_param = self.max_completion_tokens, "max_completion_tokens"
        if limit is None:
            limit, limit_param = self.max_tokens, "max_tokens"
        return ChatRequest(
            model=self.model,
            messages=[message.to_template() for message in self.messages],
            options=self.options(limit, (self.top_logprobs or 0) if self.logprobs else None),
            add_special_tokens=bool(self.add_special_tokens),
            add_generation_prompt=self.add_generation_prompt and not self.continue_final_message,
            continue_final_message=self.continue_final_message,
            template_kwargs=self.chat_template_kwargs,
            max_tokens_param=limit_param,
        )


def check_messages(messages: list[ChatMessage]) -> None:
    """Raises ApiError where a message has neither content nor tool calls."""
    for index, message in enumerate(messages):
        if message.content is None and not message.tool_calls:
            param = f"messages[{index}].content"
            raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


class ChatCompletionWriter:
    """A ChatWriter."""

    stream_type = EVENT_STREAM

    def __init__(self, head: AnswerHead, with_logprobs: bool, with_usage: bool) -> None:
        """`with_usage`: whether a stream ends with it."""
        self._head = head
        self._start = head.of_chunk("chat.completion.chunk")
        self._vocabulary = head.vocabulary if with_logprobs else None
        self._with_usage = with_usage
        self._tail = ',"usage":null}\n\n' if with_usage else "}\n\n"
        self._begun: set[int] = set()

    def events(self, delta: MessageDelta) -> bytes:
        start, tail, index = self._start, self._tail, delta.choice_index
        parts = []
        if index not in self._begun:
            self._begun.add(index)
            parts.append(
                f'{start}{{"index":{index},"delta":{{"role":"assistant","content":""}},'
                f'"logprobs":null,"finish_reason":null}}]{tail}'
            )
        if delta.content or (delta.logprobs and self._vocabulary is not None):
            logprobs = "null" if self._vocabulary is None else dumps(chat_logprobs(delta.logprobs, self._vocabulary))
            parts.append(
                f'{start}{{"index":{index},"delta":{{"content":{encode_basestring(delta.content)}}},'
                f'"logprobs":{logprobs},"finish_reason":null}}]{tail}'
            )
        if delta.end_reason is not None:
            parts.append(
                f'{start}{{"index":{index},"delta":{{}},"logprobs":null,'
                f'"finish_reason":"{delta.end_reason.value}"}}]{tail}'
            )
        return "".join(parts).encode()

    def end(self, usage: Usage) -> bytes:
        return end_of_stream(self._start, usage if self._with_usage else None)

    def error(self, error: ApiError) -> bytes:
        return error_event(error)

    def whole(self, messages: list[Message], usage: Usage) -> bytes:
        choices = [self._choice(index, message) for index, message in enumerate(messages)]
        return dump(self._head.whole("chat.completion", choices, usage))

    def _choice(self, index: int, message: Message) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": message.content, "refusal": None},
            "logprobs": None if self._vocabulary is None else chat_logprobs(message.logprobs, self._vocabulary),
            "finish_reason": None if message.end_reason is None else message.end_reason.value,
        }
