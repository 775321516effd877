"""Thinking budget: after a given number of reasoning tokens, only the token that ends the reasoning is allowed."""

from __future__ import annotations

from services.worker.plan import ThinkingLimit


class ThinkingBudget:
    """Follows one output, token by token. Only the first reasoning section counts."""

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
        """Number of tokens that are certainly sampled before `forced` names a token, whichever tokens they are. None:
        `forced` names no token any more."""
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
