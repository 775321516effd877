"""Converts the tokens of one choice to text and finds stop strings, for streamed and unary responses."""

from __future__ import annotations

from collections.abc import Sequence

from services.router.text.detokenizer import Detokenizer
from services.router.text.stop_strings import StopMatcher


class TextOutput:
    __slots__ = ("_detokenizer", "_end_token_ids", "_matcher", "_min_tokens", "num_tokens", "stopped")

    def __init__(
        self,
        detokenizer: Detokenizer,
        matcher: StopMatcher | None,
        end_token_ids: frozenset[int],
        min_tokens: int = 0,
    ) -> None:
        """`end_token_ids`: tokens that end the output and are not part of its text. `min_tokens`: stop strings within
        the first `min_tokens` tokens do not end the output."""
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._end_token_ids = end_token_ids
        self._min_tokens = min_tokens
        # Number of tokens so far. Tokens after the one that completed a stop string do not count.
        self.num_tokens = 0
        # Whether a stop string was found.
        self.stopped = False

    def push(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """Returns the new text that can be sent, and the number of `token_ids` that belong to the output: all, or the
        tokens up to the one that completes a stop string."""
        push, end_token_ids, matcher = self._detokenizer.push, self._end_token_ids, self._matcher
        pieces = []
        for position, token_id in enumerate(token_ids):
            if token_id in end_token_ids:
                continue
            text = push(token_id)
            if matcher is not None and text:
                text = matcher.push(text, may_stop=self.num_tokens + position >= self._min_tokens)
                if matcher.stopped:
                    pieces.append(text)
                    self.stopped = True
                    self.num_tokens += position + 1
                    return "".join(pieces), position + 1
            pieces.append(text)
        self.num_tokens += len(token_ids)
        return "".join(pieces), len(token_ids)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text; None if there was none."""
        return self._matcher.found if self._matcher is not None and self.stopped else None

    def finish(self) -> str:
        """Returns the text that was held back. Call it at the end of the output. Drops a character that is still
        incomplete."""
        return self._matcher.flush() if self._matcher is not None else ""
