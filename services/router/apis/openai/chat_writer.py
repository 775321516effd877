"""The answers of /v1/chat/completions, streamed and whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

from services.router.apis.openai.json import AnswerHead, ChunkTails, end_of_stream, error_event, prompt_logprobs
from services.router.chat import EndReason, Message, MessageDelta, ToolCallDelta
from services.router.errors import ApiError
from services.router.generation import Usage
from services.router.http import EVENT_STREAM, TokenNames, chat_logprobs, dumps, texts_of

# JSON of `content` in the first chunk of a choice: an empty text if the message begins with content, otherwise null.
_FIRST = {True: '""', False: "null"}


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """Selects the optional parts of an answer."""

    with_logprobs: bool = False
    # Whether a stream ends with the usage.
    with_usage: bool = False
    with_token_ids: bool = False
    # Whether the answer includes the model's reasoning.
    with_reasoning: bool = True
    names_tokens_by_id: bool = False
    # Whether the request names the function to call.
    names_function: bool = False
    # Whether the request has `functions`. The message then has at most one call, in the field `function_call`.
    with_function_call: bool = False

    def finish_reason(self, reason: EndReason) -> str:
        """Returns OpenAI's finish_reason. As in OpenAI's API, it is `stop` for an answer with a call if the request
        names the function to call."""
        is_call = reason is EndReason.TOOL_CALLS
        if is_call and self.with_function_call and not self.names_function:
            return "function_call"
        return (EndReason.STOP if is_call and self.names_function else reason).value


class ChatCompletionWriter:
    """A ChatWriter for /v1/chat/completions."""

    stream_type = EVENT_STREAM
    repeats_answer = False

    def __init__(self, head: AnswerHead, style: ChatStyle) -> None:
        self._head = head
        self._style = style
        self._start = head.of_chunk("chat.completion.chunk")
        self._names = TokenNames(head.vocabulary, style.names_tokens_by_id)
        self._tails = ChunkTails(style.with_usage)
        self._num_begun = 0

    def events(self, delta: MessageDelta) -> bytes:
        start, index, style = self._start, delta.choice_index, self._style
        parts = []
        new = self._new(delta)
        if index >= self._num_begun:
            # The first token gets a chunk even if it has no text yet, because clients measure the time to the first
            # token by this chunk. Choices with a lower index also get their first chunk now, because OpenAI's SDK
            # expects choices to begin in order.
            for choice in range(self._num_begun, index + 1):
                first_tail = self._tails.first(delta.usage)
                if style.with_token_ids and not choice:
                    first_tail = f',"prompt_token_ids":{dumps(delta.prompt_token_ids)}{first_tail}'
                # As in OpenAI's API, content is null if the message begins with reasoning or a call, or if it is not
                # known yet how the message begins.
                begins_otherwise = delta.tool_calls or delta.reasoning or delta.is_undecided
                is_content = choice == index and not begins_otherwise
                parts.append(
                    f'{start}{{"index":{choice},"delta":{{"role":"assistant","content":{_FIRST[is_content]}}},'
                    f'"logprobs":null,"finish_reason":null}}]{first_tail}'
                )
            self._num_begun = index + 1
        if new:
            logprobs = "null"
            if style.with_logprobs:
                logprobs = "".join(texts_of(chat_logprobs(delta.logprobs, self._names)))
            token_ids = f',"token_ids":{dumps(delta.token_ids)}' if style.with_token_ids else ""
            parts.append(
                f'{start}{{"index":{index},"delta":{{{new}}},'
                f'"logprobs":{logprobs},"finish_reason":null{token_ids}}}]{self._tails.tail(delta.usage)}'
            )
        if delta.end_reason is not None:
            tail = self._tails.tail(delta.usage)
            parts.append(
                f'{start}{{"index":{index},"delta":{{}},"logprobs":null,'
                f'"finish_reason":"{style.finish_reason(delta.end_reason)}","stop_reason":{dumps(delta.stop_reason)}}}]{tail}'
            )
        return "".join(parts).encode()

    def _new(self, delta: MessageDelta) -> str:
        """Returns the fields of a chunk's `delta` object as JSON text; an empty text if nothing is new."""
        fields, style = [], self._style
        if delta.reasoning and style.with_reasoning:
            reasoning = encode_basestring(delta.reasoning)
            fields.append(f'"reasoning_content":{reasoning},"reasoning":{reasoning}')
        if delta.tool_calls and style.with_function_call:
            fields += [f'"function_call":{dumps(_function_chunk(call))}' for call in delta.tool_calls if not call.index]
        elif delta.tool_calls:
            fields.append(f'"tool_calls":{dumps([_call_chunk(call) for call in delta.tool_calls])}')
        tells_tokens = bool(delta.logprobs and style.with_logprobs) or bool(delta.token_ids and style.with_token_ids)
        # New log probabilities and token ids need a chunk even if there is no new text. The delta then has an empty
        # content.
        if delta.content or (not fields and tells_tokens):
            fields.append(f'"content":{encode_basestring(delta.content)}')
        return ",".join(fields)

    def end(self, usage: Usage) -> bytes:
        return end_of_stream(self._start, usage if self._style.with_usage else None)

    def error(self, error: ApiError) -> bytes:
        return error_event(error)

    def whole(self, messages: list[Message], usage: Usage) -> Iterator[str]:
        body = self._body(messages, usage)
        first, logprobs = messages[0], None
        if first.prompt_logprobs is not None:
            logprobs = prompt_logprobs(first.prompt_token_ids, first.prompt_logprobs, self._names)
        # As in vLLM, these fields are null unless the request asks for them.
        body["prompt_logprobs"] = logprobs
        body["prompt_token_ids"] = first.prompt_token_ids if self._style.with_token_ids else None
        return texts_of(body)

    def batch(self, messages: list[Message], usage: Usage) -> Iterator[str]:
        """Returns the answer to several conversations: one choice for each, without fields about the prompts."""
        return texts_of(self._body(messages, usage))

    def _body(self, messages: list[Message], usage: Usage) -> dict[str, Any]:
        choices = [self._choice(index, message, self._logprobs(message)) for index, message in enumerate(messages)]
        return self._head.whole("chat.completion", choices, usage)

    def _logprobs(self, message: Message) -> dict[str, Any] | None:
        return chat_logprobs(message.logprobs, self._names) if self._style.with_logprobs else None

    def _choice(self, index: int, message: Message, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "index": index,
            "message": self._message(message),
            "logprobs": logprobs,
            "finish_reason": None if message.end_reason is None else self._style.finish_reason(message.end_reason),
            "stop_reason": message.stop_reason,
            "token_ids": message.token_ids if self._style.with_token_ids else None,
        }

    def _message(self, message: Message) -> dict[str, Any]:
        calls, reasoning = message.tool_calls, message.reasoning
        # Missing content is null in a message with calls or reasoning, and an empty text in any other message.
        content = message.content or (None if calls or reasoning else "")
        written: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls and self._style.with_function_call:
            written["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
        elif calls:
            written["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
        # Without reasoning, `reasoning` is null as in vLLM, and the older `reasoning_content` is absent.
        written["reasoning"] = None
        if reasoning and self._style.with_reasoning:
            written["reasoning_content"] = written["reasoning"] = reasoning
        return written


def _call_chunk(call: ToolCallDelta) -> dict[str, Any]:
    function = _function_chunk(call)
    if not call.id:
        return {"index": call.index, "function": function}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _function_chunk(call: ToolCallDelta) -> dict[str, str]:
    arguments = {"arguments": call.arguments}
    return {"name": call.name, **arguments} if call.id else arguments
