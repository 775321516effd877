"""Measures tokens per second, averaged over the last ten seconds."""

from __future__ import annotations

from collections import deque

_WINDOW_SECONDS = 10.0
_SAMPLE_SECONDS = 0.5


class Throughput:
    """Keeps samples of two counters: prompt tokens and generated tokens."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def observe(self, now: float, num_prompt_tokens: int, num_generation_tokens: int) -> None:
        """Records the counters' values. `now`: seconds on a monotonic clock. At most two calls per second store a
        sample."""
        samples = self._samples
        if not samples or now - samples[-1][0] >= _SAMPLE_SECONDS:
            samples.append((now, num_prompt_tokens, num_generation_tokens))
            while now - samples[0][0] > _WINDOW_SECONDS:
                samples.popleft()

    def rates(self) -> tuple[float, float]:
        """Returns prompt tokens and generated tokens per second; zeros until there are two samples."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        (start, prompt_before, generation_before), (end, prompt, generation) = self._samples[0], self._samples[-1]
        return (prompt - prompt_before) / (end - start), (generation - generation_before) / (end - start)
