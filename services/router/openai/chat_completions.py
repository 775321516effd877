"""/v1/chat/completions: its body, and its answers, streamed and whole."""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from services.router.answers import EVENT_STREAM
from services.router.chat.message import Message, MessageDelta, ToolCallDelta
from services.router.chat.request import ChatRequest
from services.router.chat.tools import MAX_TOOLS, check_tool_messages
from services.router.errors import ApiError, invalid
from services.router.generation import Usage
from services.router.openai.body import Body, GenerationBody, string_or_array
from services.router.openai.json import AnswerHead, chat_logprobs, dump, dumps, end_of_stream, error_event
from services.router.openai.tools import (
    ToolCall,
    ToolChoiceField,
    ToolDefinition,
    refuse_functions,
    tools_and_choice,
)
from services.router.openai.union import union
from services.router.prompts import MAX_MESSAGES
from services.router.sampling import MAX_LOGPROBS

# Of one message.
MAX_CALLS = 128
# A message's content as its first chunk has it, by whether the message begins with it.
_FIRST = {True: '""', False: "null"}


class TextPart(Body):
    type: Literal["text"]
    text: str


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
    tool_calls: list[ToolCall] | None = Field(None, max_length=MAX_CALLS)
    # What the model reasoned before: the name that most servers took over from DeepSeek, and vLLM's newer one.
    reasoning_content: str | None = None
    reasoning: str | None = None

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
            message["tool_calls"] = [call.to_template() for call in self.tool_calls]
        if reasoning := self.reasoning_content or self.reasoning:
            message["reasoning_content"] = message["reasoning"] = reasoning
        return message


class ChatCompletionRequest(GenerationBody):
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[ToolDefinition] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = None

    def check(self, max_n: int) -> None:
        super().check(max_n)
        refuse_functions(self, self.messages)
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
        tools, tool_choice = tools_and_choice(self.tools, self.tool_choice, self.parallel_tool_calls)
        messages = [message.to_template() for message in self.messages]
        check_tool_messages(messages)
        return ChatRequest(
            model=self.model,
            messages=messages,
            options=self.options(limit, (self.top_logprobs or 0) if self.logprobs else None),
            add_special_tokens=bool(self.add_special_tokens),
            add_generation_prompt=self.add_generation_prompt and not self.continue_final_message,
            continue_final_message=self.continue_final_message,
            tools=tools,
            tool_choice=tool_choice,
            template_kwargs=self._template_kwargs,
            max_tokens_param=limit_param,
        )

    @property
    def _template_kwargs(self) -> dict[str, Any] | None:
        """Templates read as arguments of theirs how much the model is to reason."""
        if self.reasoning_effort is None:
            return self.chat_template_kwargs
        effort: dict[str, Any] = {"reasoning_effort": self.reasoning_effort}
        if self.reasoning_effort == "none":
            effort["enable_thinking"] = False
        return effort | (self.chat_template_kwargs or {})


def check_messages(messages: list[ChatMessage]) -> None:
    """Raises ApiError where a message has neither content nor tool calls."""
    for index, message in enumerate(messages):
        if message.content is None and not message.tool_calls:
            param = f"messages[{index}].content"
            raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


class ChatCompletionWriter:
    """A ChatWriter."""

    stream_type = EVENT_STREAM

    def __init__(self, head: AnswerHead, with_logprobs: bool, with_usage: bool, with_reasoning: bool = True) -> None:
        """`with_usage`: whether a stream ends with it. `with_reasoning`: whether the model's reasoning is shown."""
        self._head = head
        self._start = head.of_chunk("chat.completion.chunk")
        self._vocabulary = head.vocabulary if with_logprobs else None
        self._with_reasoning = with_reasoning
        self._with_usage = with_usage
        self._tail = ',"usage":null}\n\n' if with_usage else "}\n\n"
        self._num_begun = 0

    def events(self, delta: MessageDelta) -> bytes:
        start, tail, index = self._start, self._tail, delta.choice_index
        parts = []
        new = self._new(delta)
        if index >= self._num_begun and (new or delta.end_reason is not None):
            # The SDK counts on choices that begin in order.
            for choice in range(self._num_begun, index + 1):
                # Null, as OpenAI has it, where a message begins with something else: perhaps no content comes.
                is_content = choice == index and not (delta.tool_calls or delta.reasoning)
                parts.append(
                    f'{start}{{"index":{choice},"delta":{{"role":"assistant","content":{_FIRST[is_content]}}},'
                    f'"logprobs":null,"finish_reason":null}}]{tail}'
                )
            self._num_begun = index + 1
        if new:
            logprobs = "null" if self._vocabulary is None else dumps(chat_logprobs(delta.logprobs, self._vocabulary))
            parts.append(
                f'{start}{{"index":{index},"delta":{{{new}}},"logprobs":{logprobs},"finish_reason":null}}]{tail}'
            )
        if delta.end_reason is not None:
            parts.append(
                f'{start}{{"index":{index},"delta":{{}},"logprobs":null,'
                f'"finish_reason":"{delta.end_reason.value}"}}]{tail}'
            )
        return "".join(parts).encode()

    def _new(self, delta: MessageDelta) -> str:
        """The fields of a chunk's delta; empty where there is nothing to say."""
        fields = []
        if delta.reasoning and self._with_reasoning:
            reasoning = encode_basestring(delta.reasoning)
            fields.append(f'"reasoning_content":{reasoning},"reasoning":{reasoning}')
        if delta.tool_calls:
            fields.append(f'"tool_calls":{dumps([_call_chunk(call) for call in delta.tool_calls])}')
        # Log probabilities come with content, be it empty, where nothing else came.
        if delta.content or (not fields and delta.logprobs and self._vocabulary is not None):
            fields.append(f'"content":{encode_basestring(delta.content)}')
        return ",".join(fields)

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
            "message": self._message(message),
            "logprobs": None if self._vocabulary is None else chat_logprobs(message.logprobs, self._vocabulary),
            "finish_reason": None if message.end_reason is None else message.end_reason.value,
        }

    def _message(self, message: Message) -> dict[str, Any]:
        calls, reasoning = message.tool_calls, message.reasoning
        # A message that has something else may lack content; one that has nothing says so with an empty one.
        content = message.content or (None if calls or reasoning else "")
        written: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            written["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
        if reasoning and self._with_reasoning:
            written["reasoning_content"] = written["reasoning"] = reasoning
        return written


def _call_chunk(call: ToolCallDelta) -> dict[str, Any]:
    if not call.id:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}
