"""What the core has done, for load reports and the simulator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Since the start; each is counted where it happens."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    starts: int = 0  # of sequences that had waited for their first turn
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    aborts: int = 0
    # Tokens of starting sequences, and those of them whose blocks were found in the cache.
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
