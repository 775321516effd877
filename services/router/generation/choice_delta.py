"""What is new of one choice, and how a long delta is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from services.router.dispatch import FinishReason
from services.router.generation.usage import Usage
from services.router.logprobs import PromptLogprob, TokenLogprob

# Tokens of one delta that come with log probabilities. With 20 candidates each, an API's message of them is made within
# a few milliseconds and stays under 200 KB.
MAX_TOKENS_WITH_LOGPROBS = 128
# Tokens of one delta without log probabilities. They are a few tens of KB.
MAX_TOKENS_OF_DELTA = 8192


@dataclass(slots=True)
class ChoiceDelta:
    """What is new of one choice. Text is whole characters and may lag behind the tokens."""

    # Prompt by prompt: prompt index × n + choice index.
    index: int
    text: str
    token_ids: list[int]
    logprobs: Sequence[TokenLogprob]
    finish_reason: FinishReason | None
    # In each choice's first deltas, where they are wanted: more of its prompt's, from that of the second token on.
    prompt_logprobs: Sequence[PromptLogprob] | None = None
    # What ended it, where that was a stop string or one of the request's stop tokens.
    stop_reason: str | int | None = None
    # Of the whole request so far, where every delta tells it.
    usage: Usage | None = None


def in_short_deltas(delta: ChoiceDelta) -> Iterator[ChoiceDelta]:
    """The same in deltas of a bounded length: first those of the prompt's log probabilities, then those of the output.
    All of its text is in the first delta of the output, and its finish reason in the last."""
    if delta.prompt_logprobs is not None:
        entries = delta.prompt_logprobs
        for start in range(0, max(1, len(entries)), MAX_TOKENS_WITH_LOGPROBS):
            part = entries[start : start + MAX_TOKENS_WITH_LOGPROBS]
            yield ChoiceDelta(delta.index, "", [], (), None, part, usage=delta.usage)
        delta = replace(delta, prompt_logprobs=None)
    num_tokens = len(delta.token_ids)
    limit = MAX_TOKENS_WITH_LOGPROBS if delta.logprobs else MAX_TOKENS_OF_DELTA
    if num_tokens <= limit:
        yield delta
        return
    for start in range(0, num_tokens, limit):
        end = start + limit
        is_last = end >= num_tokens
        yield ChoiceDelta(
            delta.index,
            "" if start else delta.text,
            delta.token_ids[start:end],
            delta.logprobs[start:end],
            delta.finish_reason if is_last else None,
            stop_reason=delta.stop_reason if is_last else None,
            usage=delta.usage,
        )
