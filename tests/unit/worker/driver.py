"""A small scheduler for tests: random batches, chunks, blocks, preemptions and swaps over a real ModelRunner.

It plans as the scheduler does: two steps ahead, from counts alone, without having seen the tokens still in flight.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from services.worker.plan.step_plan import U32, GeneratingSequence, NewSequence, Rows, StepPlan, StepResult
from services.worker.step.model_runner import LaunchedStep, ModelRunner
from tests.unit.worker.requests import GREEDY, Events, Interruption, Prefix, Request, Swapped

__all__ = ["GREEDY", "Driver", "Events", "Interruption", "Prefix", "Request"]

T = TypeVar("T")

# Of one request: with a prompt computed token by token, it would otherwise never get through.
MAX_PREEMPTIONS = 2


@dataclass(slots=True)
class _Running:
    """According to the driver: computed and promised counts run ahead of the tokens it has seen."""

    request: Request
    wire_id: int
    slot: int
    blocks: list[int]
    num_computed: int
    num_tokens: int
    num_shared: int  # of the first blocks, which are a prefix's
    announced: bool = False


class Driver:
    def __init__(
        self,
        runner: ModelRunner,
        seed: int = 0,
        max_chunk: int = 64,
        max_running: int = 16,
        idle: float = 0.2,
        preempt: float = 0.0,
        depth: int = 2,
    ) -> None:
        """`idle`: how likely a sequence sits a step out. `preempt`: how likely a step begins with a preemption."""
        self.runner = runner
        self.random = random.Random(seed)
        self.max_chunk, self.idle, self.preempt, self.depth = max_chunk, idle, preempt, depth
        limits = runner.limits
        self.free_slots = self._shuffled(range(min(limits.max_num_seqs, max_running)))
        self.free_blocks = self._shuffled(range(limits.num_blocks))
        self.free_host_slots = self._shuffled(range(limits.num_host_blocks))
        # Copies of the next plan: (block, slot), (slot, block) and (block, block).
        self.swap_out: list[tuple[int, int]] = []
        self.swap_in: list[tuple[int, int]] = []
        self.copies: list[tuple[int, int]] = []
        self.events = Events()
        self.waiting: deque[Request] = deque()
        self.running: list[_Running] = []
        self.released: list[int] = []
        self.in_flight: deque[tuple[LaunchedStep, dict[int, _Running]]] = deque()
        self.next_id = 1
        self.step_id = 0

    def run(self, *requests: Request) -> list[Request]:
        """Until all are done. Returns them, with their outputs."""
        self.waiting.extend(requests)
        while self.waiting or self.running or self.in_flight:
            preemptible = [s for s in self.running if s.request.num_preemptions < MAX_PREEMPTIONS]
            if preemptible and self.random.random() < self.preempt:
                self._interrupt(self.random.choice(preemptible), swap=False)
            for sequence in list(self.running):
                due = sequence.request.interruptions
                if due and sequence.num_computed >= due[0].num_tokens:
                    self._interrupt(sequence, swap=due.pop(0).swap)
            self._admit()
            plan, rows = self._plan()
            if plan is not None:
                self.in_flight.append((self.runner.launch(plan, received_at=0.0), rows))
            if len(self.in_flight) >= self.depth or plan is None:
                self._collect()
        self._release_finished()
        assert self.runner.num_sequences == 0
        return list(requests)

    def compute(self, token_ids: list[int]) -> Prefix:
        """Computes tokens in a sequence, then releases the sequence. Its blocks stay taken."""
        if not token_ids:
            return Prefix([], 0)
        self._admit_one(Request(token_ids, 1))
        sequence = self.running[0]
        self.run()
        self.free_blocks = [block for block in self.free_blocks if block not in sequence.blocks]
        return Prefix(sequence.blocks, len(token_ids))

    def _plan(self) -> tuple[StepPlan | None, dict[int, _Running]]:
        budget = self.runner.limits.max_num_batched_tokens
        chosen: list[tuple[_Running, int, list[int]]] = []
        for sequence in self._shuffled(self.running):
            promised = sequence.num_tokens - len(sequence.request.prompt)
            left = sequence.num_tokens - sequence.num_computed
            done = promised >= sequence.request.num_outputs and left == 1
            if done or budget == 0 or self.random.random() < self.idle:
                continue
            count = min(self.random.randint(1, self.max_chunk), left, budget)
            budget -= count
            chosen.append((sequence, count, self._grow(sequence, sequence.num_computed + count)))
        if not (chosen or self.swap_out or self.swap_in or self.copies):
            return None, {}
        new = tuple(self._announce(s) for s, _, _ in chosen if not s.announced)
        known = {sequence.wire_id for sequence in new}
        appended = [[] if s.wire_id in known else blocks for s, _, blocks in chosen]
        self.step_id += 1
        plan = StepPlan(
            epoch=1,
            step_id=self.step_id,
            released_wire_ids=column(self.released),
            new_sequences=new,
            rows=Rows(
                wire_ids=column([s.wire_id for s, _, _ in chosen]),
                slots=column([s.slot for s, _, _ in chosen]),
                num_scheduled_tokens=column([count for _, count, _ in chosen]),
                num_computed_tokens=column([s.num_computed for s, _, _ in chosen]),
                new_block_offsets=column(np.cumsum([0, *map(len, appended)]).tolist()),
                new_block_ids=column([block for blocks in appended for block in blocks]),
            ),
            **self._moves(),
        )
        self.released = []
        self._count(chosen)
        for sequence, count, _ in chosen:
            sequence.num_computed += count
            sequence.num_tokens += sequence.num_computed == sequence.num_tokens
        return plan, {sequence.wire_id: sequence for sequence, _, _ in chosen}

    def _moves(self) -> dict[str, U32]:
        """Returns the plan's copies, and forgets them."""
        pairs = {
            ("swap_out_blocks", "swap_out_slots"): self.swap_out,
            ("swap_in_slots", "swap_in_blocks"): self.swap_in,
            ("copy_sources", "copy_destinations"): self.copies,
        }
        self.swap_out, self.swap_in, self.copies = [], [], []
        return {
            name: column([move[i] for move in moves]) for names, moves in pairs.items() for i, name in enumerate(names)
        }

    def _count(self, chosen: list[tuple[_Running, int, list[int]]]) -> None:
        left = [(len(s.request.prompt) - s.num_computed, count) for s, count, _ in chosen]
        self.events.chunks += sum(num_left > count for num_left, count in left)
        in_prompt = [num_left > 0 for num_left, _ in left]
        self.events.mixed_steps += any(in_prompt) and not all(in_prompt)

    def _announce(self, sequence: _Running) -> NewSequence:
        sequence.announced = True
        request = sequence.request
        return GeneratingSequence(
            wire_id=sequence.wire_id,
            slot=sequence.slot,
            token_ids=column(request.prompt + request.output),
            num_prompt_tokens=len(request.prompt),
            num_computed_tokens=sequence.num_computed,
            block_ids=column(sequence.blocks),
            sampling=request.sampling,
            choice_index=request.choice_index,
            embeddings=request.embeddings,
        )

    def _admit(self) -> None:
        while self.waiting and self.free_slots:
            self._admit_one(self.waiting.popleft())

    def _admit_one(self, request: Request) -> None:
        blocks, num_shared, num_computed = self._find_computed(request)
        tokens = len(request.prompt) + len(request.output)
        slot = self.free_slots.pop()
        self.running.append(_Running(request, self.next_id, slot, blocks, num_computed, tokens, num_shared))
        self.next_id += 1

    def _find_computed(self, request: Request) -> tuple[list[int], int, int]:
        """Returns blocks with computed tokens, how many of them are shared, and the number of tokens."""
        swapped, prefix = request.swapped, request.prefix
        if swapped is not None:
            request.swapped = None
            blocks = [self._take_block() for _ in swapped.slots]
            self.swap_in += zip(swapped.slots, blocks, strict=True)
            self.free_host_slots += swapped.slots
            self.events.swapped_blocks += sum(a != b for a, b in zip(swapped.blocks, blocks, strict=True))
            return blocks, 0, swapped.num_tokens
        if prefix is None:
            return [], 0, 0
        self.events.hit_tokens += prefix.num_tokens
        num_shared = prefix.num_tokens // self.runner.limits.block_size
        blocks = list(prefix.blocks[:num_shared])
        if prefix.num_tokens % self.runner.limits.block_size:
            blocks.append(self._take_block())
            self.copies.append((prefix.blocks[num_shared], blocks[-1]))
            self.events.copied_blocks += 1
        return blocks, num_shared, prefix.num_tokens

    def _take_block(self) -> int:
        return self.free_blocks.pop(self.random.randrange(len(self.free_blocks)))

    def _grow(self, sequence: _Running, num_tokens: int) -> list[int]:
        needed = -(-num_tokens // self.runner.limits.block_size) - len(sequence.blocks)
        new = [self._take_block() for _ in range(needed)]
        sequence.blocks += new
        return new

    def _collect(self) -> None:
        if not self.in_flight:
            return
        step, rows = self.in_flight.popleft()
        self._apply(self.runner.collect(step), rows)
        for sequence in [s for s in self.running if len(s.request.output) >= s.request.num_outputs or s.request.error]:
            self._release(sequence)

    def _apply(self, result: StepResult, rows: dict[int, _Running]) -> None:
        assert result.step_id == self.step_id - len(self.in_flight)
        alive = {s.wire_id for s in self.running}
        for error in result.errors:
            if error.wire_id in alive:
                rows[error.wire_id].request.error = error.message
        for wire_id, token in zip(result.wire_ids.tolist(), result.token_ids.tolist(), strict=True):
            if wire_id in alive:
                rows[wire_id].request.output.append(token)
        if result.logprobs is not None:
            self._apply_logprobs(result, rows, alive)

    def _apply_logprobs(self, result: StepResult, rows: dict[int, _Running], alive: set[int]) -> None:
        columns = result.logprobs
        assert columns is not None
        start = 0
        for index, logprob, count in zip(
            columns.token_indices.tolist(), columns.logprobs.tolist(), columns.top_counts.tolist(), strict=True
        ):
            end = start + count
            top = list(
                zip(columns.top_token_ids[start:end].tolist(), columns.top_logprobs[start:end].tolist(), strict=True)
            )
            start = end
            wire_id = int(result.wire_ids[index])
            if wire_id in alive:
                rows[wire_id].request.logprobs.append((logprob, top))

    def _interrupt(self, sequence: _Running, *, swap: bool) -> None:
        """Preempts a sequence. Drops its results in flight, and goes on from known tokens under another wire id.
        `swap`: copies its blocks to the host first, and to other blocks when it goes on."""
        request = sequence.request
        num_tokens = min(sequence.num_computed, len(request.prompt) + len(request.output) - 1)
        if swap:
            blocks = sequence.blocks[: -(-num_tokens // self.runner.limits.block_size)]
            slots = [self.free_host_slots.pop() for _ in blocks]
            self.swap_out += zip(blocks, slots, strict=True)
            request.swapped = Swapped(slots, blocks, num_tokens)
        else:
            found = 0 if request.prefix is None else request.prefix.num_tokens
            self.events.recomputed_tokens += max(0, num_tokens - found)
        self._release(sequence)
        self.waiting.appendleft(request)
        request.num_preemptions += 1

    def _release(self, sequence: _Running) -> None:
        self.running.remove(sequence)
        if sequence.announced:
            self.released.append(sequence.wire_id)
        self.free_slots.append(sequence.slot)
        self.events.scattered_blocks += sum(after != before + 1 for before, after in pairwise(sequence.blocks))
        self.free_blocks += sequence.blocks[sequence.num_shared :]

    def _release_finished(self) -> None:
        if self.released:
            self.step_id += 1
            plan = StepPlan(1, self.step_id, column(self.released), (), NO_ROWS)
            self.runner.collect(self.runner.launch(plan, received_at=0.0))
            self.released = []

    def _shuffled(self, items: Iterable[T]) -> list[T]:
        shuffled = list(items)
        self.random.shuffle(shuffled)
        return shuffled


def column(values: list[int]) -> U32:
    return np.array(values, np.uint32)


NO_ROWS = Rows(column([]), column([]), column([]), column([]), column([0]), column([]))
