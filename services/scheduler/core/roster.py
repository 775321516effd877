"""The place of every sequence: waiting, set aside until a prefix or preparation that it needs is ready, or running."""

from __future__ import annotations

import heapq
from array import array
from bisect import insort
from collections.abc import Hashable, Iterator
from itertools import count
from operator import attrgetter
from typing import Generic

from services.scheduler.core.config import CoreConfig
from services.scheduler.core.kv_memory import KVMemory
from services.scheduler.core.plan import U32
from services.scheduler.core.prefix import Prefix
from services.scheduler.core.request import Preparation, RequestT
from services.scheduler.core.sequence import Sequence, SequencePrefix, StartRank, Status
from services.scheduler.core.turns import Turn, Turns
from services.scheduler.core.waiting import FairQueue, RankedQueue

# One in this many slots is reserved for first sequences of requests (see `Turn.is_first`), so that one request for
# hundreds of sequences cannot take all slots.
_RESERVED_PART = 16

# Numbers of arriving sequences. All rosters share them, because a sequence keeps its number when it moves to another.
_arrivals = count()


class Roster(Generic[RequestT]):
    """Moves sequences between waiting, set aside and running. Gives and takes their slots, wire ids and blocks.

    The life of a wire id, the number by which plans and results name a running sequence:

        unused --start--> in `by_wire_id` --requeue, remove--> released --take_released--> unknown to the worker

    Numbers ascend and are not used again, so a late result for a released number finds no sequence and is dropped.
    After `forget_worker`, numbers begin at 1 again, because the next worker knows none of them.
    """

    def __init__(self, config: CoreConfig, memory: KVMemory[RequestT]) -> None:
        self.by_key: dict[Hashable, Sequence[RequestT]] = {}
        self.by_wire_id: dict[int, Sequence[RequestT]] = {}
        self.running: list[Sequence[RequestT]] = []  # by rank
        self.waiting: RankedQueue[RequestT] | FairQueue[RequestT] = (
            FairQueue() if config.fair_queueing else RankedQueue()
        )
        # Suspects that wait, by arrival. They are not in the queue, because they run alone (trials.py).
        self.suspects: dict[int, Sequence[RequestT]] = {}
        self.turns = Turns()
        self.num_set_aside = 0
        # The sequences that are set aside, keyed by what they wait for, and then by arrival. A sequence waits for a
        # preparation, or for the last prefix in its prompt that another sequence is computing.
        self._set_aside: dict[SequencePrefix[RequestT] | Preparation, dict[int, Sequence[RequestT]]] = {}
        self._memory = memory
        self._num_waiting_tokens = 0  # outstanding tokens of all waiting sequences
        self._num_slots = config.max_num_seqs
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._num_reserved_slots = (config.max_num_seqs + _RESERVED_PART // 2) // _RESERVED_PART
        self._num_in_reserve = 0
        # Wire ids that the next plan tells the worker to forget.
        self._released: array[int] = array(U32)
        self._deadlines: list[tuple[float, int, Sequence[RequestT]]] = []
        self._next_wire_id = 1

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + self.num_set_aside + len(self.suspects)

    def has_slot_for(self, sequence: Sequence[RequestT]) -> bool:
        if self._has_common_slot:
            return True
        return sequence.turn.is_first and self.has_reserved_slot

    @property
    def num_common_slots(self) -> int:
        """Number of slots that are open to any sequence."""
        return self._num_slots - self._num_reserved_slots

    @property
    def num_common_slots_free(self) -> int:
        return self.num_common_slots - (len(self.running) - self._num_in_reserve)

    @property
    def num_reserved_slots_free(self) -> int:
        return self._num_reserved_slots - self._num_in_reserve

    @property
    def has_reserved_slot(self) -> bool:
        return self.num_reserved_slots_free > 0

    @property
    def _has_common_slot(self) -> bool:
        return self.num_common_slots_free > 0

    @property
    def has_released(self) -> bool:
        return bool(self._released)

    @property
    def num_outstanding_tokens(self) -> int:
        return self._num_waiting_tokens + sum(sequence.num_outstanding_tokens for sequence in self.running)

    def by_arrival(self) -> list[Sequence[RequestT]]:
        return sorted(self.by_key.values(), key=attrgetter("arrival"))

    # -- From one place to another -------------------------------------------------------------------------------------

    def enqueue(self, request: RequestT, drained: Sequence[RequestT] | None = None) -> Sequence[RequestT]:
        """Queues a sequence. `drained`: the same sequence in the scheduler that has lost its worker. It keeps its
        arrival, and what is left of its delay. A sequence that another scheduler of the router accepted has waited
        there, so it is not delayed again. A sequence that has run before goes before all that have not.
        """
        num_tokens = 0 if request.shares_prompt else len(request.prompt_token_ids)
        delay = 0 if request.was_accepted else None
        turn = self.turns.join(request.flow, num_tokens, delay=drained.turn.step if drained is not None else delay)
        sequence = Sequence(request, next(_arrivals) if drained is None else drained.arrival, turn)
        if drained is not None:
            sequence.has_started |= drained.has_started
            sequence.has_outgrown = drained.has_outgrown
        if sequence.has_started:
            sequence.turn = Turn(0, turn.is_first)
        if drained is not None:
            sequence.accuse_as(drained)
        elif request.suspicion:
            sequence.accuse(request.suspicion)
        self.by_key[request.key] = sequence
        self._wait(sequence)
        if request.deadline is not None:
            self._add_deadline(request.deadline, sequence)
        return sequence

    def start(self, sequence: Sequence[RequestT], found: list[SequencePrefix[RequestT]]) -> None:
        """Moves a waiting sequence to running, with a slot and the blocks of the prefixes found for it."""
        self._take(sequence)
        self._num_waiting_tokens -= sequence.num_outstanding_tokens
        sequence.status = Status.RUNNING
        sequence.has_started = True
        sequence.own_token_ids()
        sequence.num_tokens_at_start = len(sequence.token_ids)
        sequence.is_in_reserve = not self._has_common_slot
        self._num_in_reserve += sequence.is_in_reserve
        sequence.slot = self._free_slots.pop()
        sequence.wire_id = self._next_wire_id
        self._next_wire_id += 1
        self.by_wire_id[sequence.wire_id] = sequence
        insort(self.running, sequence)
        self._memory.attach(sequence, found)

    def set_aside(self, sequence: Sequence[RequestT], waits_for: SequencePrefix[RequestT] | Preparation) -> None:
        """Takes a sequence out of the queue until `wake(waits_for)` puts it back: when the prefix is computed, when the
        sequence that computes the prefix stops before that, or when the preparation ends."""
        self._take(sequence)
        sequence.waits_for = waits_for
        self._set_aside.setdefault(waits_for, {})[sequence.arrival] = sequence
        self.num_set_aside += 1

    def waiting_for(self, preparation: Preparation) -> list[Sequence[RequestT]]:
        return list(self._set_aside.get(preparation, {}).values())

    def is_awaited(self, preparation: Preparation) -> bool:
        """Whether any sequence waits for this preparation."""
        return preparation in self._set_aside

    def prompt_ranks(self, prefills: list[Sequence[RequestT]]) -> list[tuple[StartRank, Sequence[RequestT]]]:
        """Returns the partly computed prompts with their ranks, in the order in which they should continue. A prompt
        has the rank of its sequence, or of a sequence that waits for the prompt's blocks, whichever is better. If it
        had only its own rank, sequences that rank between the two would delay both."""
        ranks = {sequence: sequence.start_rank for sequence in prefills}
        for waits_for, sequences in self._set_aside.items():
            if isinstance(waits_for, Prefix) and waits_for.owner is not None and waits_for.owner in ranks:
                first = next(iter(sequences.values()))
                ranks[waits_for.owner] = min(ranks[waits_for.owner], first.start_rank)
        return sorted((rank, sequence) for sequence, rank in ranks.items())

    def wake(self, waited_for: SequencePrefix[RequestT] | Preparation) -> None:
        for sequence in self._set_aside.pop(waited_for, {}).values():
            sequence.waits_for = None
            self.num_set_aside -= 1
            self._put(sequence)

    def withdraw(self, sequence: Sequence[RequestT], suspicion: int) -> None:
        """Takes an accusation back, because the worker did not exit after all."""
        is_put = sequence.status is Status.WAITING and sequence.waits_for is None
        if is_put:
            self._take(sequence)
        sequence.accuse(suspicion)
        if is_put:
            self._put(sequence)

    def requeue(self, sequence: Sequence[RequestT]) -> None:
        """Moves a running sequence back to the queue, and takes its blocks and slot away. Its results in flight will be
        dropped, because it loses its wire id.
        """
        self._leave(sequence)
        sequence.status = Status.WAITING
        sequence.turn = Turn(min(sequence.turn.step, self.turns.num_steps), sequence.turn.is_first)
        self._wait(sequence)

    def remove(self, sequence: Sequence[RequestT]) -> None:
        """Ends a sequence, whether it waits, is set aside or runs."""
        del self.by_key[sequence.request.key]
        self._memory.release_host_slots(sequence)
        if sequence.status is Status.RUNNING:
            self._leave(sequence)
        else:
            self._num_waiting_tokens -= sequence.num_outstanding_tokens
            if sequence.waits_for is None:
                self._take(sequence)
            else:
                self._forget_set_aside(sequence, sequence.waits_for)
        sequence.status = Status.FINISHED
        self.turns.leave(sequence.request.flow)

    def expired(self, now: float) -> Iterator[Sequence[RequestT]]:
        """Yields the sequences whose deadline is past."""
        while self._deadlines and self._deadlines[0][0] <= now:
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.status is not Status.FINISHED:
                yield sequence

    def take_released(self) -> array[int]:
        """Returns the wire ids that the next plan tells the worker to forget. Each is returned once."""
        released, self._released = self._released, array(U32)
        return released

    def forget_worker(self) -> None:
        """Restarts wire ids at 1. Call it when the worker is gone and no sequence runs."""
        self._released = array(U32)
        self._next_wire_id = 1

    def check_integrity(self) -> None:
        """Asserts that every sequence is either waiting, set aside or running, and that the counts of slots, sequences
        and tokens are right."""
        assert sorted([*self._free_slots, *(s.slot for s in self.running)]) == list(range(self._num_slots))
        assert self._num_in_reserve == sum(s.is_in_reserve for s in self.running) <= self._num_reserved_slots
        assert list(self.by_wire_id.values()) == sorted(self.running, key=attrgetter("wire_id"))
        assert self.running == sorted(self.running), "running out of order"
        assert len(self.by_key) == len(self.running) + self.num_waiting
        outstanding = sum(sequence.num_outstanding_tokens for sequence in self.by_key.values())
        assert self.num_outstanding_tokens == outstanding
        for sequence in self.running:
            assert sequence.status is Status.RUNNING
            assert len(sequence.token_ids) <= sequence.num_planned_tokens <= sequence.max_num_tokens
        set_aside = [s for sequences in self._set_aside.values() for s in sequences.values()]
        assert len(set_aside) == self.num_set_aside
        for waits_for, sequences in self._set_aside.items():
            assert sequences
            if isinstance(waits_for, Prefix):
                assert waits_for.owner in self.running, "nothing computes the awaited prefix"
            assert all(s.waits_for == waits_for for s in sequences.values())
        assert all(sequence.is_suspect for sequence in self.suspects.values())
        assert not any(sequence.is_suspect for sequence in self.waiting)
        for sequence in [*self.waiting, *self.suspects.values(), *set_aside]:
            assert sequence.status is Status.WAITING
            assert not sequence.prefixes
            assert not sequence.block_ids
            assert sequence.wire_id == 0

    def _wait(self, sequence: Sequence[RequestT]) -> None:
        self._num_waiting_tokens += sequence.num_outstanding_tokens
        sequence.choose_needs()
        self._put(sequence)

    def _put(self, sequence: Sequence[RequestT]) -> None:
        if sequence.is_suspect:
            self.suspects[sequence.arrival] = sequence
        else:
            self.waiting.push(sequence)

    def _take(self, sequence: Sequence[RequestT]) -> None:
        if self.suspects.pop(sequence.arrival, None) is None:
            self.waiting.remove(sequence)

    def _leave(self, sequence: Sequence[RequestT]) -> None:
        """Takes blocks, slot and wire id away from a running sequence. The next plan tells the worker to forget the
        wire id.
        """
        self.running.remove(sequence)
        del self.by_wire_id[sequence.wire_id]
        self._released.append(sequence.wire_id)
        self._free_slots.append(sequence.slot)
        self._num_in_reserve -= sequence.is_in_reserve
        for prefix in self._memory.release(sequence):
            self.wake(prefix)
        sequence.slot = -1
        sequence.wire_id = 0
        sequence.num_planned_tokens = len(sequence.token_ids)

    def _forget_set_aside(
        self, sequence: Sequence[RequestT], waits_for: SequencePrefix[RequestT] | Preparation
    ) -> None:
        others = self._set_aside[waits_for]
        del others[sequence.arrival]
        self.num_set_aside -= 1
        if not others:
            del self._set_aside[waits_for]

    def _add_deadline(self, deadline: float, sequence: Sequence[RequestT]) -> None:
        heapq.heappush(self._deadlines, (deadline, sequence.arrival, sequence))
        if len(self._deadlines) > 2 * len(self.by_key) + 64:
            # Most entries belong to sequences that ended before their deadline. Dropping these entries keeps memory in
            # proportion to the number of unfinished sequences.
            self._deadlines = [entry for entry in self._deadlines if entry[2].status is not Status.FINISHED]
            heapq.heapify(self._deadlines)
