"""How busy a scheduler is: what it last said, and what this router has sent it since."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# Throughput is averaged over this many seconds.
_WINDOW_SECONDS = 10.0
_SAMPLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """What the router uses of quire.scheduler.v1.Load, under the same names."""

    outstanding_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_used_blocks: int = 0
    num_blocks: int = 0
    block_size: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    num_ready_groups: int = 0
    is_draining: bool = False
    num_prefix_cache_queries: int = 0
    num_prefix_cache_hits: int = 0
    num_used_host_blocks: int = 0
    num_host_blocks: int = 0


class LoadTracker:
    def __init__(self) -> None:
        self.last = Load()
        # Whether `last` came from the scheduler.
        self.is_known = False
        # Tokens sent since the last report, and between the last two: a report may have left before the former arrived
        # there, and even before the latter did.
        self._sent = 0
        self._sent_before = 0
        self._samples: deque[tuple[float, int, int]] = deque()

    @property
    def outstanding_tokens(self) -> int:
        return self.last.outstanding_tokens + self._sent_before + self._sent

    def sent(self, num_tokens: int) -> None:
        self._sent += num_tokens

    def report(self, load: Load, now: float) -> None:
        """`now`: seconds on a monotonic clock."""
        self.last = load
        self.is_known = True
        self._sent_before, self._sent = self._sent, 0
        samples = self._samples
        if not samples or now - samples[-1][0] >= _SAMPLE_SECONDS:
            samples.append((now, load.num_prompt_tokens, load.num_generation_tokens))
            while now - samples[0][0] > _WINDOW_SECONDS:
                samples.popleft()

    def throughput(self) -> tuple[float, float]:
        """Prompt and generation tokens per second, lately."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        (start, prompt_before, generation_before), (end, prompt, generation) = self._samples[0], self._samples[-1]
        return (prompt - prompt_before) / (end - start), (generation - generation_before) / (end - start)
