"""The answers of /v1/chat/completions, streamed and whole."""

from __future__ import annotations

from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

from services.router.answers import EVENT_STREAM
from services.router.chat.message import Message, MessageDelta
from services.router.errors import ApiError
from services.router.generation import Usage
from services.router.openai.json import (
    AnswerHead,
    TokenNames,
    chat_logprobs,
    chunk_tail,
    dump,
    dumps,
    end_of_stream,
    error_event,
    prompt_logprobs,
)


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """What an answer tells besides its message."""

    with_logprobs: bool = False
    # At the end of a stream.
    with_usage: bool = False
    with_token_ids: bool = False
    names_tokens_by_id: bool = False


class ChatCompletionWriter:
    """A ChatWriter."""

    stream_type = EVENT_STREAM

    def __init__(self, head: AnswerHead, style: ChatStyle) -> None:
        self._head = head
        self._style = style
        self._start = head.of_chunk("chat.completion.chunk")
        self._names = TokenNames(head.vocabulary, style.names_tokens_by_id)
        self._begun: set[int] = set()

    def events(self, delta: MessageDelta) -> bytes:
        start, index, style = self._start, delta.choice_index, self._style
        tail = chunk_tail(delta.usage, style.with_usage)
        parts = []
        if index not in self._begun:
            first_tail = tail
            if style.with_token_ids and not self._begun:
                first_tail = f',"prompt_token_ids":{dumps(delta.prompt_token_ids)}{tail}'
            self._begun.add(index)
            parts.append(
                f'{start}{{"index":{index},"delta":{{"role":"assistant","content":""}},'
                f'"logprobs":null,"finish_reason":null}}]{first_tail}'
            )
        tells_tokens = bool(delta.logprobs and style.with_logprobs) or bool(delta.token_ids and style.with_token_ids)
        if delta.content or tells_tokens:
            logprobs = dumps(chat_logprobs(delta.logprobs, self._names)) if style.with_logprobs else "null"
            token_ids = f',"token_ids":{dumps(delta.token_ids)}' if style.with_token_ids else ""
            parts.append(
                f'{start}{{"index":{index},"delta":{{"content":{encode_basestring(delta.content)}}},'
                f'"logprobs":{logprobs},"finish_reason":null{token_ids}}}]{tail}'
            )
        if delta.end_reason is not None:
            parts.append(
                f'{start}{{"index":{index},"delta":{{}},"logprobs":null,'
                f'"finish_reason":"{delta.end_reason.value}","stop_reason":{dumps(delta.stop_reason)}}}]{tail}'
            )
        return "".join(parts).encode()

    def end(self, usage: Usage) -> bytes:
        return end_of_stream(self._start, usage if self._style.with_usage else None)

    def error(self, error: ApiError) -> bytes:
        return error_event(error)

    def whole(self, messages: list[Message], usage: Usage) -> bytes:
        choices = [self._choice(index, message) for index, message in enumerate(messages)]
        body = self._head.whole("chat.completion", choices, usage)
        first = messages[0]
        if first.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(first.prompt_token_ids, first.prompt_logprobs, self._names)
        if self._style.with_token_ids:
            body["prompt_token_ids"] = first.prompt_token_ids
        return dump(body)

    def _choice(self, index: int, message: Message) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": message.content, "refusal": None},
            "logprobs": chat_logprobs(message.logprobs, self._names) if self._style.with_logprobs else None,
            "finish_reason": None if message.end_reason is None else message.end_reason.value,
            "stop_reason": message.stop_reason,
            **({"token_ids": message.token_ids} if self._style.with_token_ids else {}),
        }
