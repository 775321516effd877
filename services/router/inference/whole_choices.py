"""Deltas for a client that does not read along."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from services.router.generation import ChoiceDelta
from services.router.submission import PromptLogprob, TokenLogprob

# Of one delta: with twenty log probabilities each, less than 4 MiB.
MAX_TOKENS = 8192


@dataclass(slots=True)
class _Gathered:
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprob] | None = None


async def whole_choices(deltas: AsyncIterator[list[ChoiceDelta]]) -> AsyncIterator[list[ChoiceDelta]]:
    """The same, with one delta per choice, when it is over; a very long one comes in pieces."""
    unfinished: dict[int, _Gathered] = {}
    async for news in deltas:
        finished = []
        for delta in news:
            gathered = unfinished.setdefault(delta.index, _Gathered())
            gathered.pieces.append(delta.text)
            gathered.token_ids += delta.token_ids
            gathered.logprobs += delta.logprobs
            gathered.prompt_logprobs = gathered.prompt_logprobs or delta.prompt_logprobs
            if delta.finish_reason is not None or len(gathered.token_ids) >= MAX_TOKENS:
                del unfinished[delta.index]
                finished.append(
                    replace(
                        delta,
                        text="".join(gathered.pieces),
                        token_ids=gathered.token_ids,
                        logprobs=gathered.logprobs,
                        prompt_logprobs=gathered.prompt_logprobs,
                    )
                )
        if finished:
            yield finished
