"""Collects the deltas of each choice until the choice is complete, for clients that do not stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from services.router.generation import ChoiceDelta, in_short_deltas
from services.router.logprobs import PromptLogprobs, TokenLogprobs


@dataclass(slots=True)
class _Gathered:
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: TokenLogprobs = field(default_factory=TokenLogprobs)
    prompt_logprobs: PromptLogprobs | None = None

    def add(self, delta: ChoiceDelta) -> None:
        self.pieces.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            if self.prompt_logprobs is None:
                self.prompt_logprobs = PromptLogprobs()
            self.prompt_logprobs += delta.prompt_logprobs


async def whole_choices(deltas: AsyncIterator[list[ChoiceDelta]]) -> AsyncIterator[list[ChoiceDelta]]:
    """Collects the deltas of each choice, and yields them when the choice ends: merged into one delta, or into several
    if the choice has many tokens or log probabilities."""
    unfinished: dict[int, _Gathered] = {}
    async for news in deltas:
        for delta in news:
            gathered = unfinished.setdefault(delta.index, _Gathered())
            gathered.add(delta)
            if delta.finish_reason is None:
                continue
            del unfinished[delta.index]
            whole = replace(
                delta,
                text="".join(gathered.pieces),
                token_ids=gathered.token_ids,
                logprobs=gathered.logprobs or (),
                prompt_logprobs=gathered.prompt_logprobs,
            )
            for short in in_short_deltas(whole):
                yield [short]
