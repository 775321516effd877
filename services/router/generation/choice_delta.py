"""The delta of one choice, and how a long delta is split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from services.router.dispatch import FinishReason
from services.router.generation.usage import Usage
from services.router.logprobs import PromptLogprob, TokenLogprob

# Maximum number of tokens with log probabilities in one delta. If each token has 20 candidates, an API needs a few
# milliseconds to encode such a delta, and the result has up to 200 KB.
MAX_TOKENS_WITH_LOGPROBS = 128
# Maximum number of characters of text in one delta, at most 1 MiB in UTF-8. A token can have hundreds of characters.
MAX_CHARS_OF_DELTA = 262_144
# Maximum number of tokens without log probabilities in one delta. An API encodes such a delta in a few tens of KB.
MAX_TOKENS_OF_DELTA = 8192


@dataclass(slots=True)
class ChoiceDelta:
    """New part of one choice. Text has only complete characters and can lag behind the tokens."""

    # Index over the choices of all prompts: prompt index * n + choice index.
    index: int
    text: str
    token_ids: list[int]
    logprobs: Sequence[TokenLogprob]
    finish_reason: FinishReason | None
    # The next part of the prompt's log probabilities, which begin at the prompt's second token. Only in a choice's
    # first deltas, and only if requested.
    prompt_logprobs: Sequence[PromptLogprob] | None = None
    # The stop string, or the request's stop token, that ended the choice.
    stop_reason: str | int | None = None
    # Usage of the whole request so far, if the request asks for it in every delta.
    usage: Usage | None = None


def in_short_deltas(delta: ChoiceDelta) -> Iterator[ChoiceDelta]:
    """Splits a delta into short ones: first the prompt's log probabilities, then the output. The first deltas of
    the output have all of the text, and the last delta has the finish reason."""
    if delta.prompt_logprobs is not None:
        entries = delta.prompt_logprobs
        for start in range(0, max(1, len(entries)), MAX_TOKENS_WITH_LOGPROBS):
            part = entries[start : start + MAX_TOKENS_WITH_LOGPROBS]
            yield ChoiceDelta(delta.index, "", [], (), None, part, usage=delta.usage)
        delta = replace(delta, prompt_logprobs=None)
    limit = MAX_TOKENS_WITH_LOGPROBS if delta.logprobs else MAX_TOKENS_OF_DELTA
    texts = -(-len(delta.text) // MAX_CHARS_OF_DELTA)
    number = max(1, texts, -(-len(delta.token_ids) // limit))
    if number == 1:
        yield delta
        return
    for index in range(number):
        tokens = slice(index * limit, (index + 1) * limit)
        is_last = index == number - 1
        yield ChoiceDelta(
            delta.index,
            delta.text[index * MAX_CHARS_OF_DELTA : (index + 1) * MAX_CHARS_OF_DELTA],
            delta.token_ids[tokens],
            delta.logprobs[tokens],
            delta.finish_reason if is_last else None,
            stop_reason=delta.stop_reason if is_last else None,
            usage=delta.usage,
        )
