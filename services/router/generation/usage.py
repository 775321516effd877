"""Token counts and timings of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    # Number of completion tokens that belong to the model's reasoning; 0 if the API does not parse reasoning.
    reasoning_tokens: int = 0
    # Seconds from the request's start to the first token of any choice.
    seconds_to_first_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Timings:
    """Times of a request's events, in seconds since its submission. None: the event has not happened yet."""

    # When a scheduler first planned a step for any of the choices.
    queue: float | None
    first_token: float | None
    last_token: float | None
    # When a choice got its first token after a part that worked on it was lost.
    recovered: tuple[float, ...]
    total: float
