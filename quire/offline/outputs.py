"""The outputs of `LLM`, with vLLM's field names."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quire.client.results import FinishReason, TokenLogprob
from quire.offline.request_metrics import RequestMetrics


@dataclass(slots=True)
class Logprob:
    """The log probability of a token. `rank`: 1 for the likeliest token; None for a sampled token that is not among the
    requested number of likeliest tokens."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One answer. `stop_reason`: the stop string or the entry of `stop_token_ids` that ended it; None if the model's
    end token or the length limit ended it."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    # For each token, log probabilities by token id; the token itself comes first.
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: FinishReason
    stop_reason: int | str | None

    def finished(self) -> bool:
        return True


@dataclass(slots=True)
class RequestOutput:
    """The answers to one prompt. `prompt`: its text; None if it was given as token ids."""

    request_id: str
    prompt: str | None
    # The prompt after truncation.
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    # Number of prompt tokens found in the prefix cache.
    num_cached_tokens: int
    # Log probabilities of each prompt token if requested, as in CompletionOutput; None for the first token.
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    finished: bool = True
    metrics: RequestMetrics | None = None
    # vLLM's fields for features that Quire does not have: LoRA adapters and encoder-decoder models.
    lora_request: None = None
    encoder_prompt: None = None


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """The embedding of one prompt."""

    request_id: str
    outputs: EmbeddingOutput
    # The prompt after truncation.
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass(slots=True)
class ScoringOutput:
    """The similarity of two texts: the cosine of their embeddings."""

    score: float


@dataclass(slots=True)
class ScoringRequestOutput:
    request_id: str
    outputs: ScoringOutput
    # Token ids of the first text, then of the second text.
    prompt_token_ids: list[int]
    finished: bool = True


def scoring_output(request_id: str, one: EmbeddingRequestOutput, other: EmbeddingRequestOutput) -> ScoringRequestOutput:
    """Returns the cosine similarity of two embeddings. Both must be normalized, because only their dot product is
    computed."""
    score = sum(map(operator.mul, one.outputs.embedding, other.outputs.embedding))
    return ScoringRequestOutput(request_id, ScoringOutput(score), one.prompt_token_ids + other.prompt_token_ids)


def logprobs_of(entries: Iterable[TokenLogprob], texts: Mapping[int, str]) -> list[dict[int, Logprob]]:
    """Returns log probabilities by token id for each entry; the entry's own token comes first. `texts`: texts by token
    id; some can be missing."""
    return [_logprobs(entry, texts) for entry in entries]


def token_ids_of(entries: Iterable[TokenLogprob]) -> set[int]:
    """Returns the ids of all tokens that have a log probability in `entries`."""
    return {token_id for entry in entries for token_id in (entry.token_id, *(top[0] for top in entry.top))}


def _logprobs(entry: TokenLogprob, texts: Mapping[int, str]) -> dict[int, Logprob]:
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(entry.top, 1)}
    token_id = entry.token_id
    rank = ranks.get(token_id) if entry.rank is None else entry.rank
    found = {token_id: Logprob(entry.logprob, rank, texts.get(token_id))}
    for other, logprob in entry.top:
        found.setdefault(other, Logprob(logprob, ranks[other], texts.get(other)))
    return found
