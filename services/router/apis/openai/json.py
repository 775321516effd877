"""JSON of the answers to chats and completions, in OpenAI's format. Parts that are equal in all chunks of a stream are
encoded only once."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from services.router.errors import ApiError
from services.router.generation import Usage
from services.router.http import Items, TokenNames, dump, dumps, finite
from services.router.logprobs import PromptLogprob, TokenLogprob
from services.router.model import ServedModel
from services.router.text import Vocabulary

_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields at the head of an answer, which are equal in all chunks of a stream."""

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
        """Returns the start of a streamed chunk, up to `choices`. `kind`: chat.completion.chunk or text_completion."""
        return (
            f'data: {{"id":"{self.id}","object":"{kind}","created":{self.created},"model":{dumps(self.model)},'
            f'"system_fingerprint":"{self.fingerprint}","choices":['
        )

    def whole(self, kind: str, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """Returns a whole answer, for `texts_of` to encode. `kind`: chat.completion or text_completion."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage_object(usage),
            "system_fingerprint": self.fingerprint,
        }


def error_event(error: ApiError) -> bytes:
    """Returns the event that ends a stream if the answer fails after its beginning."""
    return b"data: " + dump(error.body()) + b"\n\n"


class ChunkTails:
    """Writes the end of each chunk of a stream, with the field `usage` if requested. The field has the usage so far if
    it counts more tokens than the usage written last; otherwise the field is null."""

    __slots__ = ("_num_told", "_without")

    def __init__(self, with_usage: bool) -> None:
        """`with_usage`: whether chunks have the field `usage`, which can be null."""
        self._without = ',"usage":null}\n\n' if with_usage else "}\n\n"
        self._num_told = -1

    def tail(self, usage: Usage | None) -> str:
        """Returns the end of a chunk. `usage`: usage so far; None if the request does not ask for it in every chunk."""
        if usage is None or usage.completion_tokens <= self._num_told:
            return self._without
        self._num_told = usage.completion_tokens
        return f',"usage":{dumps(usage_object(usage))}}}\n\n'

    def first(self, usage: Usage | None) -> str:
        """Returns the end of a choice's first chunk. The chunk contains no token, so its usage counts no tokens of the
        answer."""
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


def completion_logprobs(
    entries: Sequence[TokenLogprob], names: TokenNames, offset: int, prompt: EchoedPrompt | None = None
) -> dict[str, Any]:
    """Returns the columns of a choice's `logprobs`, for `texts_of` to encode. `offset`: offset of the first token's
    text. `prompt`: an echoed prompt, which comes first. As in OpenAI's API, `top_logprobs` always include the token
    itself; with `logprobs: 0` they contain nothing else."""
    columns: dict[str, Iterable[object]] = {
        "text_offset": _offsets(entries, names, offset),
        "token_logprobs": (finite(entry.logprob) for entry in entries),
        "tokens": (names.name(entry.token_id) for entry in entries),
        "top_logprobs": (_tops(entry.token_id, entry.logprob, entry.top, names) for entry in entries),
    }
    first = {} if prompt is None else prompt.columns(names)
    return {name: Items(chain(first.get(name, ()), column)) for name, column in columns.items()}


def _offsets(entries: Sequence[TokenLogprob], names: TokenNames, offset: int) -> Iterator[int]:
    for entry in entries:
        yield offset
        offset += len(names.text(entry.token_id))


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """The tokens of an echoed prompt, or a part of them, with their log probabilities."""

    token_ids: Sequence[int]
    # Log probabilities of the tokens, without the prompt's first token, which has no log probability.
    entries: Sequence[PromptLogprob]
    # Offset of each token's text.
    offsets: Iterable[int]
    # Number of most likely tokens to return at each position. `entries` have more of them if the request has a larger
    # `prompt_logprobs`.
    num_top: int
    # Whether `token_ids` begin with the prompt's first token.
    has_first: bool = True

    def columns(self, names: TokenNames) -> dict[str, Iterable[object]]:
        nothing = (None,) if self.has_first else ()
        following = self.token_ids[1:] if self.has_first else self.token_ids
        tops = (
            _tops(token_id, entry.logprob, entry.top[: self.num_top], names)
            for token_id, entry in zip(following, self.entries, strict=True)
        )
        return {
            "text_offset": self.offsets,
            "token_logprobs": chain(nothing, (finite(entry.logprob) for entry in self.entries)),
            "tokens": (names.name(token_id) for token_id in self.token_ids),
            "top_logprobs": chain(nothing, tops),
        }


def echoed_offsets(
    token_ids: Sequence[int], names: TokenNames, end: int, *, skip_special_tokens: bool
) -> Iterator[int]:
    """Yields, for each prompt token, the offset of the token's text in the prompt's text. `end`: length of the prompt's
    text. `skip_special_tokens`: whether the prompt's text leaves out special tokens."""
    follow, position = names.vocabulary.detokenizer((), skip_special_tokens), 0
    for token_id in token_ids:
        yield min(position, end)
        position += len(follow.push(token_id))


def prompt_logprobs(token_ids: Sequence[int], entries: Sequence[PromptLogprob], names: TokenNames) -> Items:
    """Returns `prompt_logprobs` in vLLM's format, for `texts_of` to encode: null for the prompt's first token, and for
    every other token an object whose keys are the ids of this token and of the most likely tokens."""
    return Items(chain((None,), (_candidates(*pair, names) for pair in zip(token_ids[1:], entries, strict=True))))


def _candidates(token_id: int, entry: PromptLogprob, names: TokenNames) -> dict[str, dict[str, Any]]:
    likeliest = [(top_id, logprob, rank) for rank, (top_id, logprob) in enumerate(entry.top, 1)]
    return {
        str(candidate): {"logprob": finite(logprob), "rank": rank, "decoded_token": names.text(candidate)}
        for candidate, logprob, rank in ((token_id, entry.logprob, entry.rank), *likeliest)
    }


def _tops(own_id: int, own_logprob: float, top: Sequence[tuple[int, float]], names: TokenNames) -> dict[str, float]:
    """Returns the log probabilities of the most likely tokens (`top`) and of the token in the text (`own_id`) at one
    position, by token name. If another token has the same name as `own_id`, only `own_id` is kept."""
    tops = {names.name(token_id): finite(logprob) for token_id, logprob in top}
    return tops | {names.name(own_id): finite(own_logprob)}
