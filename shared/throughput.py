"""Tokens per second, averaged over the last seconds."""

from __future__ import annotations

from collections import deque

_WINDOW_SECONDS = 10.0
_SAMPLE_SECONDS = 0.5


class Throughput:
    """Remembers samples of two counters of tokens: prompt tokens, and generated ones."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def observe(self, now: float, num_prompt_tokens: int, num_generation_tokens: int) -> None:
        """`now`: seconds on a monotonic clock. More than two calls a second cost nothing more."""
        samples = self._samples
        if not samples or now - samples[-1][0] >= _SAMPLE_SECONDS:
            samples.append((now, num_prompt_tokens, num_generation_tokens))
            while now - samples[0][0] > _WINDOW_SECONDS:
                samples.popleft()

    def rates(self) -> tuple[float, float]:
        """Prompt and generated tokens per second; zeros before there are two samples."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        (start, prompt_before, generation_before), (end, prompt, generation) = self._samples[0], self._samples[-1]
        return (prompt - prompt_before) / (end - start), (generation - generation_before) / (end - start)
