"""Thinking budget: after a given number of reasoning tokens, only the token that ends the reasoning is allowed."""

from __future__ import annotations

from services.worker.plan import ThinkingLimit


class ThinkingBudget:
    """Counts the reasoning tokens of one output, and forces the end of the reasoning once the limit is reached. Only
    the first reasoning section is counted and limited."""

    __slots__ = ("_is_inside", "_limit", "_num_tokens", "is_over")

    def __init__(self, limit: ThinkingLimit) -> None:
        self._limit = limit
        self._is_inside = limit.begin_token_id is None
        self._num_tokens = 0
        # Whether the reasoning has ended. From then on no token is forced.
        self.is_over = False

    def observe(self, token_id: int) -> None:
        if self.is_over:
            return
        if not self._is_inside:
            self._is_inside = token_id == self._limit.begin_token_id
        elif token_id == self._limit.end_token_id:
            self.is_over = True
        else:
            self._num_tokens += 1

    @property
    def num_free_tokens(self) -> int | None:
        """Least number of tokens that are sampled before `forced` can name a token, whatever these tokens are. None:
        `forced` never names a token again."""
        if self.is_over:
            return None
        left = self._limit.num_tokens - self._num_tokens
        # The token that begins the reasoning does not count against the limit.
        return left if self._is_inside else left + 1

    @property
    def forced(self) -> int | None:
        """The token that must come next; None if the next token is free."""
        is_spent = self._is_inside and not self.is_over and self._num_tokens >= self._limit.num_tokens
        return self._limit.end_token_id if is_spent else None
