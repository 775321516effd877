"""What the answers of OpenAI's API have in common, as JSON. What no chunk changes is written once."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.router.detokenizer import Vocabulary
from services.router.errors import ApiError
from services.router.generation import Usage
from services.router.model import ServedModel
from services.router.submission import TokenLogprob

_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What an answer says of itself."""

    id: str
    # Seconds since the epoch.
    created: int
    model: str
    fingerprint: str
    vocabulary: Vocabulary

    @classmethod
    def new(cls, prefix: str, model: ServedModel) -> AnswerHead:
        return cls(
            f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model.info.name, model.fingerprint,
            model.tokenizer.vocabulary,
        )  # fmt: skip

    def of_chunk(self, kind: str) -> str:
        """A streamed chunk, up to its choices. `kind`: chat.completion.chunk or text_completion."""
        return (
            f'data: {{"id":"{self.id}","object":"{kind}","created":{self.created},"model":{dumps(self.model)},'
            f'"system_fingerprint":"{self.fingerprint}","choices":['
        )

    def whole(self, kind: str, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """`kind`: chat.completion or text_completion."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage_object(usage),
            "system_fingerprint": self.fingerprint,
        }


def dump(value: object) -> bytes:
    return dumps(value).encode()


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def error_event(error: ApiError) -> bytes:
    """What a stream says in place of the rest, once it has begun."""
    return b"data: " + dump(error.body()) + b"\n\n"


def end_of_stream(chunk_start: str, usage: Usage | None) -> bytes:
    if usage is None:
        return _DONE
    return f'{chunk_start}],"usage":{dumps(usage_object(usage))}}}\n\n'.encode() + _DONE


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


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
