"""Load of a scheduler: its last report, plus the tokens that this router has sent since."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shared.throughput import Throughput


@dataclass(frozen=True, slots=True)
class SchedulerLoad:
    """The fields of quire.scheduler.v1.Load that the router uses, under the same names."""

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
    num_scheduled_tokens: int = 0
    num_steps_by_tokens: tuple[int, ...] = ()
    is_struggling: bool = False
    num_deferred: int = 0
    num_host_cache_queries: int = 0
    num_host_cache_hits: int = 0
    is_slow: bool = False
    enable_prefix_caching: bool | None = None

    @property
    def num_device_cache_hits(self) -> int:
        """Tokens among num_prefix_cache_hits whose KV was on the device."""
        return self.num_prefix_cache_hits - self.num_host_cache_hits


class LoadTracker:
    def __init__(self) -> None:
        self.last = SchedulerLoad()
        # False while `last` is still the initial value.
        self.has_report = False
        # Tokens sent since the last report, and tokens sent between the last two reports. The latter count as
        # outstanding as well, because some of them might have arrived after the scheduler wrote the last report.
        self._sent = 0
        self._sent_before = 0
        self._throughput = Throughput()

    @property
    def outstanding_tokens(self) -> int:
        return self.last.outstanding_tokens + self._sent_before + self._sent

    def sent(self, num_tokens: int) -> None:
        self._sent += num_tokens

    def struggles(self) -> None:
        """Takes note that the scheduler suspects itself, before its next report."""
        self.last = replace(self.last, is_struggling=True, is_slow=True)

    def report(self, load: SchedulerLoad, now: float) -> None:
        """Stores a scheduler's report. `now`: seconds on a monotonic clock."""
        self.last = load
        self.has_report = True
        self._sent_before, self._sent = self._sent, 0
        self._throughput.observe(now, load.num_prompt_tokens, load.num_generation_tokens)

    def throughput(self) -> tuple[float, float]:
        """Returns recent prompt and generation tokens per second."""
        return self._throughput.rates()
