"""What the answers of OpenAI's API have in common, as JSON. What no chunk changes is written once."""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from services.router.detokenizer import Vocabulary
from services.router.errors import ApiError
from services.router.generation import Usage
from services.router.model import ServedModel
from services.router.submission import PromptLogprob, TokenLogprob

_DONE = b"data: [DONE]\n\n"
# Of an answer that is written at once. To make this many takes a few milliseconds.
PIECE_BYTES = 65_536


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


def in_pieces(texts: Iterable[str]) -> Iterator[bytes]:
    """One JSON document, given as a sequence of texts, in messages of about PIECE_BYTES. The next texts are made when
    the next message is asked for."""
    piece = bytearray()
    for text in texts:
        piece += text.encode()
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def array(items: Iterable[str]) -> Iterator[str]:
    """The texts of an array of items, which are JSON each."""
    separator = "["
    for item in items:
        yield separator + item
        separator = ","
    yield "[]" if separator == "[" else "]"


def error_event(error: ApiError) -> bytes:
    """What a stream says in place of the rest, once it has begun."""
    return b"data: " + dump(error.body()) + b"\n\n"


class ChunkTails:
    """The ends of a stream's chunks but the last. Where chunks tell the usage so far, none repeats a count of tokens:
    clients work out from it what is new in each."""

    __slots__ = ("_num_told", "_without")

    def __init__(self, with_usage: bool) -> None:
        """`with_usage`: whether any chunk has a usage; the others then have null."""
        self._without = ',"usage":null}\n\n' if with_usage else "}\n\n"
        self._num_told = -1

    def tail(self, usage: Usage | None) -> str:
        """`usage`: so far, where chunks tell it."""
        if usage is None or usage.completion_tokens <= self._num_told:
            return self._without
        self._num_told = usage.completion_tokens
        return f',"usage":{dumps(usage_object(usage))}}}\n\n'

    def first(self, usage: Usage | None) -> str:
        """Of a chunk that comes before its choice's first token."""
        return self.tail(None if usage is None else dataclasses.replace(usage, completion_tokens=0))


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


def chat_logprobs(entries: Sequence[TokenLogprob], names: TokenNames) -> dict[str, Any]:
    return {"content": [chat_logprob(entry, names) for entry in entries], "refusal": None}


def chat_logprob(entry: TokenLogprob, names: TokenNames) -> dict[str, Any]:
    return {
        **_token(entry.token_id, entry.logprob, names),
        "top_logprobs": [_token(token_id, logprob, names) for token_id, logprob in entry.top],
    }


def completion_logprobs(entries: Sequence[TokenLogprob], names: TokenNames, offset: int) -> tuple[dict[str, Any], int]:
    """The columns, and where the text of the next token begins. `offset`: where that of the first does. Each token is
    among its `top_logprobs`, likely or not, as OpenAI has it: `logprobs: 0` tells of it alone."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(names.text(entry.token_id))
    columns = {
        "text_offset": offsets,
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "tokens": [names.name(entry.token_id) for entry in entries],
        "top_logprobs": [_tops(entry.token_id, entry.logprob, entry.top, names) for entry in entries],
    }
    return columns, offset


def echoed_logprobs(
    token_ids: Sequence[int],
    entries: Sequence[PromptLogprob],
    names: TokenNames,
    offset: int,
    num_top: int,
    *,
    skip_special_tokens: bool,
) -> dict[str, Any]:
    """The columns of a prompt that is part of its answer's text: nothing is known of its first token. `offset`: where
    the prompt's text ends. `num_top`: of the likeliest, as the request may want more of them as `prompt_logprobs`.
    `skip_special_tokens`: whether the prompt's text lacks them."""
    follow = names.vocabulary.detokenizer((), skip_special_tokens)
    offsets, position = [], 0
    for token_id in token_ids:
        offsets.append(min(position, offset))
        position += len(follow.push(token_id))
    tops: list[dict[str, float] | None] = [
        _tops(token_id, entry.logprob, entry.top[:num_top], names)
        for token_id, entry in zip(token_ids[1:], entries, strict=True)
    ]
    return {
        "text_offset": offsets,
        "token_logprobs": [None, *(_finite(entry.logprob) for entry in entries)],
        "tokens": [names.name(token_id) for token_id in token_ids],
        "top_logprobs": [None, *tops],
    }


def joined_columns(first: dict[str, Any] | None, second: dict[str, Any]) -> dict[str, Any]:
    return second if first is None else {name: first[name] + column for name, column in second.items()}


def prompt_logprobs(
    token_ids: Sequence[int], entries: Sequence[PromptLogprob], names: TokenNames
) -> list[dict[str, dict[str, Any]] | None]:
    """In vLLM's form: of each token an object by token id, of itself and the likeliest."""
    result: list[dict[str, dict[str, Any]] | None] = [None]
    for token_id, entry in zip(token_ids[1:], entries, strict=True):
        likeliest = [(top_id, logprob, rank) for rank, (top_id, logprob) in enumerate(entry.top, 1)]
        result.append(
            {
                str(candidate): {"logprob": _finite(logprob), "rank": rank, "decoded_token": names.text(candidate)}
                for candidate, logprob, rank in ((token_id, entry.logprob, entry.rank), *likeliest)
            }
        )
    return result


@dataclass(frozen=True, slots=True)
class TokenNames:
    """What log probabilities call tokens."""

    vocabulary: Vocabulary
    # token_id:7 instead of a text, which may be a piece of a character, and another token's too.
    by_id: bool = False

    def name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.by_id else self.text(token_id)

    def text(self, token_id: int) -> str:
        """A token by itself may be a piece of a character; its bytes are reported beside it."""
        return self.vocabulary.shown_text(token_id)


def _tops(own_id: int, own_logprob: float, top: Sequence[tuple[int, float]], names: TokenNames) -> dict[str, float]:
    """By name. Where another token has the same, the own one's counts: it is what `tokens` names."""
    tops = {names.name(token_id): _finite(logprob) for token_id, logprob in top}
    return tops | {names.name(own_id): _finite(own_logprob)}


def _token(token_id: int, logprob: float, names: TokenNames) -> dict[str, Any]:
    return {
        "token": names.name(token_id),
        "logprob": _finite(logprob),
        "bytes": list(names.vocabulary.token_bytes(token_id)),
    }


def _finite(logprob: float) -> float:
    """JSON has no infinity; -9999 is what OpenAI documents for tokens out of reach."""
    return logprob if logprob > -9999.0 else -9999.0
