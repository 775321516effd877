"""The OpenAI API's answers as bytes. What does not change from chunk to chunk is written once per request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

from services.router.detokenizer import Vocabulary
from services.router.errors import ApiError
from services.router.generation import ChoiceDelta, Usage
from services.router.submission import FinishReason, TokenLogprob

DONE = b"data: [DONE]\n\n"
_FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


def dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def error_event(error: ApiError) -> bytes:
    """What a stream says in place of the rest, once it has begun."""
    return b"data: " + dump(error.body()) + b"\n\n"


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def finish_reason_name(reason: FinishReason | None) -> str | None:
    return None if reason is None else _FINISH_REASONS[reason]


class ChatStream:
    """Server-sent events of one chat completion."""

    def __init__(
        self, response_id: str, created: int, model: str, fingerprint: str, vocabulary: Vocabulary | None, usage: bool
    ) -> None:
        """`vocabulary` where logprobs were asked for; `usage`: whether the stream ends with it."""
        self._head = _head(response_id, "chat.completion.chunk", created, model, fingerprint)
        self._vocabulary = vocabulary
        self._with_usage = usage
        self._tail = ',"usage":null}\n\n' if usage else "}\n\n"
        self._begun: set[int] = set()

    def events(self, delta: ChoiceDelta) -> bytes:
        head, tail = self._head, self._tail
        parts = []
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            parts.append(
                f'{head}{{"index":{delta.index},"delta":{{"role":"assistant","content":""}},'
                f'"logprobs":null,"finish_reason":null}}]{tail}'
            )
        if delta.text or (delta.logprobs and self._vocabulary is not None):
            logprobs = "null" if self._vocabulary is None else _dumps(chat_logprobs(delta.logprobs, self._vocabulary))
            parts.append(
                f'{head}{{"index":{delta.index},"delta":{{"content":{encode_basestring(delta.text)}}},'
                f'"logprobs":{logprobs},"finish_reason":null}}]{tail}'
            )
        if delta.finish_reason is not None:
            parts.append(
                f'{head}{{"index":{delta.index},"delta":{{}},"logprobs":null,'
                f'"finish_reason":"{_FINISH_REASONS[delta.finish_reason]}"}}]{tail}'
            )
        return "".join(parts).encode()

    def end(self, usage: Usage) -> bytes:
        if not self._with_usage:
            return DONE
        return f'{self._head}],"usage":{_dumps(usage_object(usage))}}}\n\n'.encode() + DONE


class CompletionStream:
    """Server-sent events of one text completion."""

    def __init__(
        self, response_id: str, created: int, model: str, fingerprint: str, vocabulary: Vocabulary | None, usage: bool
    ) -> None:
        self._head = _head(response_id, "text_completion", created, model, fingerprint)
        self._vocabulary = vocabulary
        self._with_usage = usage
        self._tail = ',"usage":null}\n\n' if usage else "}\n\n"
        # Characters sent of each choice: where its next token's text begins.
        self._offsets: dict[int, int] = {}

    def events(self, delta: ChoiceDelta) -> bytes:
        text = delta.text
        if not (text or delta.finish_reason is not None or (delta.logprobs and self._vocabulary is not None)):
            return b""
        logprobs = "null"
        if self._vocabulary is not None:
            offset = self._offsets.get(delta.index, 0)
            columns = completion_logprobs(delta.logprobs, self._vocabulary, offset)
            self._offsets[delta.index] = offset + sum(map(len, columns["tokens"]))
            logprobs = _dumps(columns)
        reason = "null" if delta.finish_reason is None else f'"{_FINISH_REASONS[delta.finish_reason]}"'
        return (
            f'{self._head}{{"index":{delta.index},"text":{encode_basestring(text)},'
            f'"logprobs":{logprobs},"finish_reason":{reason}}}]{self._tail}'
        ).encode()

    def end(self, usage: Usage) -> bytes:
        if not self._with_usage:
            return DONE
        return f'{self._head}],"usage":{_dumps(usage_object(usage))}}}\n\n'.encode() + DONE


class WholeChoice:
    """One choice of an answer that is sent in one piece."""

    __slots__ = ("finish_reason", "logprobs", "pieces")

    def __init__(self, echo: str = "") -> None:
        self.pieces = [echo]
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None

    def add(self, delta: ChoiceDelta) -> None:
        self.pieces.append(delta.text)
        self.logprobs += delta.logprobs
        self.finish_reason = delta.finish_reason

    def chat(self, index: int, vocabulary: Vocabulary | None) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(self.pieces), "refusal": None},
            "logprobs": None if vocabulary is None else chat_logprobs(self.logprobs, vocabulary),
            "finish_reason": finish_reason_name(self.finish_reason),
        }

    def completion(self, index: int, vocabulary: Vocabulary | None) -> dict[str, Any]:
        return {
            "index": index,
            "text": "".join(self.pieces),
            "logprobs": None if vocabulary is None else completion_logprobs(self.logprobs, vocabulary, 0),
            "finish_reason": finish_reason_name(self.finish_reason),
        }


def whole(
    kind: str, response_id: str, created: int, model: str, fingerprint: str, choices: list[dict[str, Any]], usage: Usage
) -> bytes:
    """`kind`: chat.completion or text_completion."""
    return dump(
        {
            "id": response_id,
            "object": kind,
            "created": created,
            "model": model,
            "choices": choices,
            "usage": usage_object(usage),
            "system_fingerprint": fingerprint,
        }
    )


def chat_logprobs(entries: Sequence[TokenLogprob], vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "content": [
            {
                **_token(entry.token_id, entry.logprob, vocabulary),
                "top_logprobs": [_token(token_id, logprob, vocabulary) for token_id, logprob in entry.top],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def completion_logprobs(entries: Sequence[TokenLogprob], vocabulary: Vocabulary, offset: int) -> dict[str, Any]:
    tokens = [_text(entry.token_id, vocabulary) for entry in entries]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "text_offset": offsets,
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "tokens": tokens,
        "top_logprobs": [
            {_text(token_id, vocabulary): _finite(logprob) for token_id, logprob in entry.top} for entry in entries
        ],
    }


def _token(token_id: int, logprob: float, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "token": _text(token_id, vocabulary),
        "logprob": _finite(logprob),
        "bytes": list(vocabulary.token_bytes(token_id)),
    }


def _text(token_id: int, vocabulary: Vocabulary) -> str:
    """A token by itself may be a piece of a character; its bytes are reported beside it."""
    text = vocabulary.token_text(token_id)
    return vocabulary.token_bytes(token_id).decode(errors="replace") if text is None else text


def _finite(logprob: float) -> float:
    """JSON has no infinity; -9999 is what OpenAI documents for tokens out of reach."""
    return logprob if logprob > -9999.0 else -9999.0


def _head(response_id: str, kind: str, created: int, model: str, fingerprint: str) -> str:
    return (
        f'data: {{"id":"{response_id}","object":"{kind}","created":{created},"model":{_dumps(model)},'
        f'"system_fingerprint":"{fingerprint}","choices":['
    )


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
