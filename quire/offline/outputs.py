"""What `LLM` returns, in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.client.results import Choice, FinishReason, TokenLogprob


@dataclass(slots=True)
class Logprob:
    """`rank`: 1 for the likeliest token; None where it is not among those that were asked for."""

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
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    # Of the prompt's tokens, those that were found in the prefix cache.
    num_cached_tokens: int
    finished: bool = True


def completion_output(
    index: int, choice: Choice, stop_reason: int | str | None, token_texts: Mapping[int, str] | None
) -> CompletionOutput:
    """`token_texts`: of every token with a log probability; None where none were asked for."""
    logprobs = cumulative = None
    if token_texts is not None:
        logprobs = [_logprobs(entry, token_texts) for entry in choice.logprobs]
        cumulative = sum(entry.logprob for entry in choice.logprobs)
    return CompletionOutput(
        index, choice.text, list(choice.token_ids), cumulative, logprobs, choice.finish_reason, stop_reason
    )


def _logprobs(entry: TokenLogprob, token_texts: Mapping[int, str]) -> dict[int, Logprob]:
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(entry.top, 1)}
    token_id = entry.token_id
    found = {token_id: Logprob(entry.logprob, ranks.get(token_id), token_texts[token_id])}
    for other, logprob in entry.top:
        found.setdefault(other, Logprob(logprob, ranks[other], token_texts[other]))
    return found
