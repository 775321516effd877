"""Counts of what the core has done, for load reports and the simulator."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

# Upper bounds of the buckets in the histogram of tokens per step. They equal vLLM's.
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(slots=True)
class Counters:
    """Counts since the start of the scheduler. They continue when a worker is lost or replaced."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    starts: int = 0  # sequences that started for the first time; a start after a preemption does not count
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    aborts: int = 0
    prefix_cache_queries: int = 0  # number of tokens that sequences had at their first start
    prefix_cache_hits: int = 0  # number of these tokens that were found in the cache
    host_cache_queries: int = 0  # number of these tokens that were looked up in host memory, not being on the device
    host_cache_hits: int = 0  # number of these tokens that were found in host memory; they count as cache hits, too
    # Number of prompt and output tokens that steps computed.
    scheduled_tokens: int = 0
    # Number of steps in each bucket of STEP_TOKENS, then in a last bucket for larger steps.
    steps_by_tokens: list[int] = field(default_factory=lambda: [0] * (len(STEP_TOKENS) + 1))

    def count_step(self, num_tokens: int) -> None:
        self.steps += 1
        # A step without tokens only moves blocks, so the histogram leaves it out.
        if num_tokens:
            self.scheduled_tokens += num_tokens
            self.steps_by_tokens[bisect_left(STEP_TOKENS, num_tokens)] += 1
