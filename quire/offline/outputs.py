"""What `LLM` returns, in vLLM's shapes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quire.client.results import FinishReason, TokenLogprob
from quire.offline.request_metrics import RequestMetrics


@dataclass(slots=True)
class Logprob:
    """`rank`: 1 for the likeliest token; None for one of an output that is not among those that were asked for."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One answer. `stop_reason`: the stop string, or the id in `stop_token_ids`, that ended it; None where it was the
    model's own end token, or the length."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    # Of each token: by token id, its own first.
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: FinishReason
    stop_reason: int | str | None

    def finished(self) -> bool:
        return True


@dataclass(slots=True)
class RequestOutput:
    """The answers to one prompt. `prompt`: its text; None where it was given as token ids."""

    request_id: str
    prompt: str | None
    # What was left of it, if it was cut.
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    # Of the prompt's tokens, those that were found in the prefix cache.
    num_cached_tokens: int
    # Where they were asked for. Of each of the prompt's tokens, as in CompletionOutput; None for the first.
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    finished: bool = True
    metrics: RequestMetrics | None = None
    # vLLM's fields for what Quire does not have: adapters, and prompts of models that encode and decode.
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
    # What was left of the prompt, if it was cut.
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass(slots=True)
class ScoringOutput:
    """How alike two texts are: the cosine of their embeddings."""

    score: float


@dataclass(slots=True)
class ScoringRequestOutput:
    request_id: str
    outputs: ScoringOutput
    # Of the two texts, one after the other.
    prompt_token_ids: list[int]
    finished: bool = True


def scoring_output(request_id: str, one: EmbeddingRequestOutput, other: EmbeddingRequestOutput) -> ScoringRequestOutput:
    """Of embeddings of length 1, whose product is their cosine."""
    score = sum(map(operator.mul, one.outputs.embedding, other.outputs.embedding))
    return ScoringRequestOutput(request_id, ScoringOutput(score), one.prompt_token_ids + other.prompt_token_ids)


def logprobs_of(entries: Iterable[TokenLogprob], texts: Mapping[int, str]) -> list[dict[int, Logprob]]:
    """Of each token, its own first. `texts`: tokens' texts; may lack some."""
    return [_logprobs(entry, texts) for entry in entries]


def token_ids_of(entries: Iterable[TokenLogprob]) -> set[int]:
    """Every token that they tell a log probability of."""
    return {token_id for entry in entries for token_id in (entry.token_id, *(top[0] for top in entry.top))}


def _logprobs(entry: TokenLogprob, texts: Mapping[int, str]) -> dict[int, Logprob]:
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(entry.top, 1)}
    token_id = entry.token_id
    rank = ranks.get(token_id) if entry.rank is None else entry.rank
    found = {token_id: Logprob(entry.logprob, rank, texts.get(token_id))}
    for other, logprob in entry.top:
        found.setdefault(other, Logprob(logprob, ranks[other], texts.get(other)))
    return found
