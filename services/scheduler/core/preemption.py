"""When blocks run out, preempts the running sequence that ranks last. So the sequence that ranks first always finishes.
The KV blocks of the preempted sequence are copied to the host if that is faster than computing them again.
"""

from __future__ import annotations

from typing import Generic

from services.scheduler.core.config import CoreConfig, PreemptionMode
from services.scheduler.core.counters import Counters
from services.scheduler.core.kv_memory import KVMemory
from services.scheduler.core.pacing import StepTimes
from services.scheduler.core.request import RequestT
from services.scheduler.core.roster import Roster
from services.scheduler.core.sequence import Sequence


class Preemption(Generic[RequestT]):
    def __init__(
        self,
        config: CoreConfig,
        roster: Roster[RequestT],
        memory: KVMemory[RequestT],
        step_times: StepTimes,
        counters: Counters,
    ) -> None:
        self._config = config
        self._roster = roster
        self._memory = memory
        self._step_times = step_times
        self._counters = counters
        self._preempted: list[Sequence[RequestT]] = []

    def take_preempted(self) -> list[Sequence[RequestT]]:
        """Returns the sequences that were preempted since the last call, in order."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def make_room(self, sequence: Sequence[RequestT]) -> bool:
        """Preempts running sequences, beginning with the one that ranks last, until a block is free for the next token
        of `sequence`. Returns False if `sequence` itself was preempted.
        """
        while self._memory.num_blocks_short(sequence, 1) > self._memory.pool.num_free:
            if self.preempt_last() is sequence:
                return False
        return True

    def preempt_last(self) -> Sequence[RequestT]:
        """Preempts the running sequence that ranks last, and returns it. The sequence waits to be recomputed, or
        swapped in from the host.
        """
        victim = self._roster.running[-1]
        self._counters.preemptions += 1
        self._preempted.append(victim)
        if self._is_worth_saving(victim):
            self._memory.swap_out(victim)
        self._roster.requeue(victim)
        return victim

    def _is_worth_saving(self, sequence: Sequence[RequestT]) -> bool:
        """Whether to copy the sequence's blocks to the host. False in mode RECOMPUTE, if the host has no room for all
        the blocks, or if the sequence cannot resume from saved blocks. In mode AUTO, also False if copying the blocks
        to the host and back is estimated to take longer than computing them again.
        """
        num_tokens = self._memory.num_tokens_to_save(sequence)
        num_blocks = -(-num_tokens // self._config.block_size)
        mode = self._config.preemption_mode
        if not sequence.request.work.can_resume:
            return False
        if mode is PreemptionMode.RECOMPUTE or not 0 < num_blocks <= self._memory.host.num_free:
            return False
        if mode is not PreemptionMode.AUTO or not self._step_times.is_known:
            return True
        seconds = 2 * num_blocks * self._config.seconds_per_swapped_block
        return seconds <= self._step_times.chunk_seconds(0, num_tokens)
