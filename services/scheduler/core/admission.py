"""Starts waiting sequences in a step. A sequence does not compute the prefixes of its prompt that are in the cache.

A sequence starts when a slot is free and enough blocks are free for its whole prompt. A sequence is taken out of the
queue ("set aside") while another sequence computes a prefix that it needs, or while the worker prepares something for
it, such as a grammar. So the sequences behind it need not wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic

from services.scheduler.core.budget import StepBudget
from services.scheduler.core.config import CoreConfig
from services.scheduler.core.counters import Counters
from services.scheduler.core.kv_memory import KVMemory, num_computed
from services.scheduler.core.pacing import StepTimes
from services.scheduler.core.preparations import Preparations
from services.scheduler.core.request import RequestT
from services.scheduler.core.roster import Roster
from services.scheduler.core.sequence import Sequence, SequencePrefix, StartRank
from services.scheduler.core.step_builder import StepBuilder

# Maximum number of sequences that one search of the queue sets aside. The next step searches the rest of the queue.
_MAX_SET_ASIDE = 64


@dataclass(slots=True)
class _Search(Generic[RequestT]):
    """One pass over the waiting sequences, in order."""

    step: StepBuilder[RequestT]
    budget: StepBudget
    before: StartRank | None
    num_reserved_blocks: int  # blocks that partly computed prompts still need
    num_new_bytes: int  # size of the plan's new sequences in the message to the worker
    max_set_aside: int
    only_first: bool = False  # the only slots left are reserved for first sequences of requests
    begun: list[Sequence[RequestT]] = field(default_factory=list)  # started; more of their prompt is left to compute


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
        # Whether the last search of the queue stopped early because it had set aside _MAX_SET_ASIDE sequences. If so,
        # the next search might start sequences that the last search did not reach.
        self.is_cut_short = False

    def admit(
        self,
        step: StepBuilder[RequestT],
        prefills: list[Sequence[RequestT]],
        budget: StepBudget,
        before: StartRank | None = None,
    ) -> list[Sequence[RequestT]]:
        """Starts waiting sequences in order, while the step has room, a slot is free, and enough blocks are free for
        the whole prompt. Blocks that partly computed prompts (`prefills`) still need do not count as free. With
        `before`: starts only sequences that rank before it. Returns the started sequences that have more of their
        prompt to compute.
        """
        self.is_cut_short = False
        # Without a free block no sequence can start, because each needs a block of its own for its last token.
        if not self._roster.waiting or not self._memory.pool.num_free:
            return []
        search = self._begin(step, prefills, budget, before)
        while not self._is_over(search):
            sequence = self._next(search)
            if sequence is None:
                break
            if self._set_aside_for_preparation(sequence):
                continue
            found = self._find_prefixes(sequence)
            if self._set_aside_for_prefix(sequence, found):
                continue
            if not (
                self._has_blocks(sequence, found, search)
                and self._fits_plan(sequence, search)
                and self._fits_budget(sequence, budget)
            ):
                break
            self._start(sequence, found)
            self._add_first_chunk(sequence, search)
        return search.begun

    def prepare(self, sequence: Sequence[RequestT]) -> None:
        """Requests the preparation that a newly arrived sequence needs, without waiting for the next step. Does so only
        if there are slots for all waiting sequences. A suspect's preparation waits for the suspect's trial (trials.py).
        """
        needs, roster = sequence.needs, self._roster
        if needs is None or sequence.is_suspect or roster.num_waiting > roster.num_common_slots_free:
            return
        if self._preparations.is_ready(needs):
            return
        self._preparations.request(needs, roster.is_awaited)
        roster.set_aside(sequence, needs)

    def can_start_alone(self, sequence: Sequence[RequestT], prefills: list[Sequence[RequestT]]) -> bool:
        """Whether a suspect could start in a step of its own: a slot and enough blocks are free, and no other sequence
        computes a prefix that it needs. `prefills`: as in `admit`."""
        if not self._roster.has_slot_for(sequence):
            return False
        found = self._find_prefixes(sequence)
        if any(prefix.owner is not None for prefix in found):
            return False
        num_reserved = sum(self._memory.num_blocks_short(s, s.num_uncomputed_tokens) for s in prefills)
        return num_reserved + self._memory.num_blocks_needed(sequence, found) <= self._memory.pool.num_free

    def start_alone(self, sequence: Sequence[RequestT], step: StepBuilder[RequestT], budget: StepBudget) -> None:
        """Starts a suspect that is prepared and can start alone, in a step of its own."""
        self._start(sequence, self._find_prefixes(sequence))
        self._add_first_chunk(sequence, self._begin(step, [], budget, None))

    # -- The search ----------------------------------------------------------------------------------------------------

    def _begin(
        self,
        step: StepBuilder[RequestT],
        prefills: list[Sequence[RequestT]],
        budget: StepBudget,
        before: StartRank | None,
    ) -> _Search[RequestT]:
        return _Search(
            step,
            budget,
            before,
            num_reserved_blocks=sum(self._memory.num_blocks_short(s, s.num_uncomputed_tokens) for s in prefills),
            num_new_bytes=sum(new.sequence.num_bytes for new in step.new_sequences),
            max_set_aside=self._roster.num_set_aside + _MAX_SET_ASIDE,
        )

    def _is_over(self, search: _Search[RequestT]) -> bool:
        """Whether the search ends: the step is full, no sequence waits, or the search has set aside the maximum number
        of sequences.
        """
        if search.budget.tokens <= 0 or not self._roster.waiting:
            return True
        self.is_cut_short = self._roster.num_set_aside >= search.max_set_aside
        return self.is_cut_short

    def _next(self, search: _Search[RequestT]) -> Sequence[RequestT] | None:
        """Returns the first waiting sequence for which a slot is free. Returns None if there is none, or if it does not
        rank before `search.before`.
        """
        sequence = self._roster.waiting.first(search.only_first)
        if sequence is None or (search.before is not None and search.before < sequence.start_rank):
            return None
        if self._roster.has_slot_for(sequence):
            return sequence
        if search.only_first or not self._roster.has_reserved_slot:
            return None
        search.only_first = True
        return self._next(search)

    # -- Reasons to be set aside, out of the others' way ---------------------------------------------------------------

    def _set_aside_for_preparation(self, sequence: Sequence[RequestT]) -> bool:
        """Sets the sequence aside if the worker must first prepare something for it. Returns whether the sequence was
        set aside.
        """
        needs = sequence.needs
        if needs is None or self._preparations.is_ready(needs):
            return False
        self._preparations.request(needs, self._roster.is_awaited)
        self._roster.set_aside(sequence, needs)
        return True

    def _set_aside_for_prefix(self, sequence: Sequence[RequestT], found: list[SequencePrefix[RequestT]]) -> bool:
        """Sets the sequence aside if one of its `found` prefixes is still being computed or loaded by another sequence.
        Returns whether the sequence was set aside.
        """
        last_owned = next((prefix for prefix in reversed(found) if prefix.owner is not None), None)
        if last_owned is None:
            return False
        self._roster.set_aside(sequence, last_owned)
        return True

    # -- Reasons to wait at the head of the queue ----------------------------------------------------------------------

    def _has_blocks(
        self, sequence: Sequence[RequestT], found: list[SequencePrefix[RequestT]], search: _Search[RequestT]
    ) -> bool:
        """Whether enough blocks are free for the whole prompt, in addition to the blocks reserved for other prompts."""
        num_needed = self._memory.num_blocks_needed(sequence, found)
        return search.num_reserved_blocks + num_needed <= self._memory.pool.num_free

    def _fits_plan(self, sequence: Sequence[RequestT], search: _Search[RequestT]) -> bool:
        """Whether the plan stays small enough to send when the sequence is added. A sequence that exceeds the limit by
        itself fits only if the plan has no other new sequence."""
        search.num_new_bytes += sequence.num_bytes
        return not search.step.new_sequences or search.num_new_bytes <= self._config.max_new_sequence_bytes

    def _fits_budget(self, sequence: Sequence[RequestT], budget: StepBudget) -> bool:
        """Whether the step has room for a chunk of the prompt, or for the whole prompt if chunked prefill is off."""
        if budget.max_chunk(sequence) < 1:
            return False
        return self._config.chunked_prefill or len(sequence.token_ids) <= budget.tokens

    # -- Starting ------------------------------------------------------------------------------------------------------

    def _start(self, sequence: Sequence[RequestT], found: list[SequencePrefix[RequestT]]) -> None:
        num_on_device = num_computed(found) * self._config.block_size
        self._roster.start(sequence, found)
        if sequence.needs is not None and sequence.needs.is_single:
            self._preparations.use_up(sequence.needs)
        self._roster.waiting.serve(sequence, len(sequence.token_ids) - sequence.num_computed_tokens)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
            self._counters.starts += 1
            self._counters.prefix_cache_queries += len(sequence.token_ids)
            self._counters.prefix_cache_hits += sequence.num_cached_tokens
            if self._config.num_host_blocks:
                sequence.num_host_cached_tokens = max(0, sequence.num_cached_tokens - num_on_device)
                self._counters.host_cache_queries += len(sequence.token_ids) - num_on_device
                self._counters.host_cache_hits += sequence.num_host_cached_tokens

    def _add_first_chunk(self, sequence: Sequence[RequestT], search: _Search[RequestT]) -> None:
        num_left = len(sequence.token_ids) - sequence.num_computed_tokens
        chunk = min(num_left, search.budget.max_chunk(sequence))
        search.budget.take(sequence, chunk)
        search.step.add_new(sequence, chunk)
        if chunk < num_left:
            search.begun.append(sequence)
            search.num_reserved_blocks += self._memory.num_blocks_short(sequence, num_left - chunk)

    # -- What a sequence need not compute ------------------------------------------------------------------------------

    def _find_prefixes(self, sequence: Sequence[RequestT]) -> list[SequencePrefix[RequestT]]:
        """Returns the known prefixes of a starting sequence. The sequence shares prefixes on the device, and loads
        prefixes in host memory. The latter are left out if they take longer to load than to compute, or if the sequence
        has swapped out its own blocks.
        """
        found = self._memory.find(sequence)
        if not self._config.num_host_blocks:
            return found
        num_here = num_computed(found)
        num_on_host = sum(prefix.owner is None for prefix in found[num_here:])
        if sequence.host_slots or not self._is_worth_loading(num_here, num_on_host):
            # Instead of loading these prefixes, the sequence swaps in its own blocks, or computes the tokens in less
            # time.
            del found[num_here:]
        return found

    def _is_worth_loading(self, num_blocks_here: int, num_blocks: int) -> bool:
        block_size = self._config.block_size
        if not num_blocks or not self._step_times.is_known:
            return True
        seconds = num_blocks * self._config.seconds_per_swapped_block
        return seconds <= self._step_times.chunk_seconds(num_blocks_here * block_size, num_blocks * block_size)
