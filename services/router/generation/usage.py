"""How many tokens a request has taken, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    # Of the completion's, those of the model's reasoning, where whoever answers can tell them.
    reasoning_tokens: int = 0
    # From the request's start to the first token of any choice.
    seconds_to_first_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds from the request's submission. None where there was no such moment."""

    # To the first step that a scheduler planned for any choice.
    queue: float | None
    first_token: float | None
    last_token: float | None
    total: float
