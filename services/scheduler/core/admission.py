"""Which waiting sequences start in a step, and what they need not compute.

Who starts has all it takes to get through its prompt. One that needs what another is computing, or what the worker has
yet to prepare, is set aside meanwhile, out of the others' way.
"""

from __future__ import annotations

from typing import Generic

from .batch import Batch
from .budget import StepBudget
from .config import CoreConfig
from .counters import Counters
from .kv_memory import KVMemory, num_computed
from .losses import is_suspect
from .pacing import StepTimes
from .preparations import Preparations
from .request import RequestT
from .roster import Roster
from .sequence import Sequence, SequencePrefix, StartRank

# Sequences found in one step to need what others are computing, or what is not prepared; more are left for the next.
_MAX_SET_ASIDE = 64


class Admission(Generic[RequestT]):
    def __init__(
        self,
        config: CoreConfig,
        roster: Roster[RequestT],
        memory: KVMemory[RequestT],
        preparations: Preparations,
        step_times: StepTimes,
        counters: Counters,
    ) -> None:
        self._config = config
        self._roster = roster
        self._memory = memory
        self._preparations = preparations
        self._step_times = step_times
        self._counters = counters
        # Whether the last step's search ended because it had set aside so many: others may start at once.
        self.is_cut_short = False

    def admit(
        self,
        batch: Batch[RequestT],
        prefills: list[Sequence[RequestT]],
        budget: StepBudget,
        before: StartRank | None = None,
    ) -> list[Sequence[RequestT]]:
        """Starts waiting sequences, in order, while there is room in the step, a slot, and blocks for the whole
        prompt beside what the `prefills` under way still need. With `before`: those alone that rank before it.
        Returns those that have more of their prompt to compute.
        """
        config, roster, memory = self._config, self._roster, self._memory
        begun: list[Sequence[RequestT]] = []
        self.is_cut_short = False
        if not roster.waiting or not memory.pool.num_free:  # whoever starts needs a block of its own for its last token
            return begun
        reserved = sum(memory.num_blocks_short(s, s.num_uncomputed_tokens) for s in prefills)
        new_bytes = sum(new.sequence.num_bytes for new in batch.new_sequences)
        max_set_aside = roster.num_set_aside + _MAX_SET_ASIDE
        prepares_for_suspect = self._prepares_for_suspect()
        only_first = False  # The slots that are left are kept for first sequences of their requests.
        while budget.tokens > 0 and roster.waiting and not self._runs_suspect():
            if roster.num_set_aside >= max_set_aside:
                self.is_cut_short = True
                break
            sequence = roster.waiting.first(only_first)
            if sequence is None or (before is not None and before < sequence.start_rank):
                break
            if not roster.has_slot_for(sequence):
                if only_first or not roster.has_reserved_slot:
                    break
                only_first = True
                continue
            needs, is_alone = sequence.request.needs, is_suspect(sequence)
            if is_alone and (roster.running or self._preparations.is_busy_with_other(needs)):
                break
            if prepares_for_suspect and not is_alone:
                break
            if needs is not None and not self._preparations.is_ready(needs):
                self._preparations.ask(needs, roster.is_awaited)
                roster.set_aside(sequence, needs)
                prepares_for_suspect = is_alone
                continue
            found = self._find_prefixes(sequence)
            owned = next((prefix for prefix in reversed(found) if prefix.owner is not None), None)
            if owned is not None:
                roster.set_aside(sequence, owned)
                continue
            if reserved + memory.num_blocks_needed(sequence, found) > memory.pool.num_free:
                break
            new_bytes += sequence.num_bytes
            if batch.new_sequences and new_bytes > config.max_new_sequence_bytes:
                break
            if budget.max_chunk(sequence) < 1:
                break
            if not config.chunked_prefill and len(sequence.token_ids) > budget.tokens:
                break
            self._start(sequence, found)
            num_left = len(sequence.token_ids) - sequence.num_computed_tokens
            chunk = min(num_left, budget.max_chunk(sequence))
            budget.take(sequence, chunk)
            batch.add_new(sequence, chunk)
            if chunk < num_left:
                begun.append(sequence)
                reserved += memory.num_blocks_short(sequence, num_left - chunk)
        return begun

    def prepare(self, sequence: Sequence[RequestT]) -> None:
        """Asks for what a sequence that has just arrived needs of the worker, if there are slots for all that wait: a
        step would ask for it, too, but the next one may be far off. While there is a suspect, steps see to the order.
        """
        needs, roster = sequence.request.needs, self._roster
        if needs is None or roster.num_waiting > roster.num_common_slots_free or self._preparations.is_ready(needs):
            return
        if any(map(is_suspect, roster.by_key.values())):
            return
        self._preparations.ask(needs, roster.is_awaited)
        roster.set_aside(sequence, needs)

    def _start(self, sequence: Sequence[RequestT], found: list[SequencePrefix[RequestT]]) -> None:
        self._roster.start(sequence, found)
        self._roster.waiting.serve(sequence, len(sequence.token_ids) - sequence.num_computed_tokens)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
            self._counters.starts += 1
            self._counters.prefix_cache_queries += len(sequence.token_ids)
            self._counters.prefix_cache_hits += sequence.num_cached_tokens

    # -- Suspects ------------------------------------------------------------------------------------------------------

    def _runs_suspect(self) -> bool:
        """Whether the running sequence is one that nobody may run beside."""
        running = self._roster.running
        return bool(running) and is_suspect(running[0])

    def _prepares_for_suspect(self) -> bool:
        """Whether the worker prepares something for sequences that nobody may run beside."""
        preparation = self._preparations.only_pending
        return preparation is not None and any(map(is_suspect, self._roster.waiting_for(preparation)))

    # -- What a sequence need not compute ------------------------------------------------------------------------------

    def _find_prefixes(self, sequence: Sequence[RequestT]) -> list[SequencePrefix[RequestT]]:
        """What a starting sequence can share or load: what is known of its tokens, but for what is on the host and not
        worth loading.
        """
        found = self._memory.find(sequence)
        if not self._config.num_host_blocks:
            return found
        num_here = num_computed(found)
        num_on_host = sum(prefix.owner is None for prefix in found[num_here:])
        if sequence.host_slots or not self._is_worth_loading(num_here, num_on_host):
            # What is not here, it brings along itself, or computes sooner than it could be brought.
            del found[num_here:]
        return found

    def _is_worth_loading(self, num_blocks_here: int, num_blocks: int) -> bool:
        block_size = self._config.block_size
        if not num_blocks or not self._step_times.is_known:
            return True
        seconds = num_blocks * self._config.seconds_per_swapped_block
        return seconds <= self._step_times.chunk_seconds(num_blocks_here * block_size, num_blocks * block_size)
