"""Runs requests on a ModelRunner without a scheduler: steps mix chunks and decodes, with two plans in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.sequences import RUN_AHEAD, column
from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.step_plan import (
    U32,
    GeneratingSequence,
    NewSequence,
    PoolingSequence,
    Rows,
    StepPlan,
    StepResult,
)
from services.worker.plan.token_constraints import TokenConstraints
from services.worker.pooling.params import PoolingParams
from services.worker.step.model_runner import LaunchedStep, ModelRunner

GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class Ask:
    prompt: Sequence[int]
    num_outputs: int  # 0 for a prompt that is pooled
    sampling: SamplingParams = GREEDY
    constraints: TokenConstraints | None = None
    pooling: PoolingParams | None = None
    prompt_logprobs_from: int | None = None
    # Results of the request.
    output: list[int] = field(default_factory=list)
    prompt_ranks: list[int] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    embedding: NDArray[np.float32] | None = None


class Asker:
    """Runs requests on a ModelRunner. Each `run` is one epoch, in which every sequence has all of its blocks from the
    start."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._step_id = 0

    def run(self, asks: Sequence[Ask], *, swap_after: int | None = None) -> None:
        """Runs the requests until all outputs are complete. Raises RuntimeError if a sequence fails.

        `swap_after`: number of steps after which all blocks are swapped out, overwritten, and swapped in again.
        """
        runner, limits = self._runner, self._runner.limits
        runner.reset()
        blocks = self._blocks(asks)
        computed = [0] * len(asks)
        in_flight: deque[LaunchedStep] = deque()
        steps = 0
        while rows := self._next_rows(asks, computed):
            new = () if steps else self._announce(asks, blocks)
            slots = [slot for slot, _ in rows]
            scheduled = [count for _, count in rows]
            before = [computed[slot] for slot in slots]
            ids = column(slot + 1 for slot in slots)
            none = column([0] * (len(rows) + 1)), column([])
            plan = self._plan(new, Rows(ids, column(slots), column(scheduled), column(before), *none))
            in_flight.append(runner.launch(plan, received_at=0.0))
            for slot, count in rows:
                computed[slot] += count
            steps += 1
            if steps == swap_after:
                self._collect(in_flight, asks, left=0)
                self._swap(np.concatenate(blocks), limits.num_blocks)
            self._collect(in_flight, asks, left=RUN_AHEAD)
        self._collect(in_flight, asks, left=0)
        runner.reset()

    def _blocks(self, asks: Sequence[Ask]) -> list[U32]:
        limits = self._runner.limits
        at, found = 0, []
        for ask in asks:
            count = -(-(len(ask.prompt) + ask.num_outputs) // limits.block_size)
            found.append(np.arange(at, at + count, dtype=np.uint32))
            at += count
        if at >= limits.num_blocks:  # `_swap` needs one free block
            raise ValueError(f"the requests take {at} blocks; the KV cache has {limits.num_blocks}")
        return found

    def _next_rows(self, asks: Sequence[Ask], computed: Sequence[int]) -> list[tuple[int, int]]:
        """Returns pairs of slot and number of tokens to compute, decodes first."""
        room, rows = self._runner.limits.max_num_batched_tokens, []
        for slot, ask in sorted(enumerate(asks), key=lambda entry: computed[entry[0]] < len(entry[1].prompt)):
            # The last sampled token is never an input.
            left = len(ask.prompt) + max(0, ask.num_outputs - 1) - computed[slot]
            wanted = len(ask.prompt) - computed[slot] if computed[slot] < len(ask.prompt) else min(1, left)
            if count := min(wanted, room):
                rows.append((slot, count))
                room -= count
        return rows

    def _announce(self, asks: Sequence[Ask], blocks: Sequence[U32]) -> tuple[NewSequence, ...]:
        return tuple(_sequence(slot, ask, blocks[slot]) for slot, ask in enumerate(asks))

    def _swap(self, blocks: U32, num_blocks: int) -> None:
        slots = np.arange(len(blocks), dtype=np.uint32)
        nothing = Rows(column([]), column([]), column([]), column([]), column([0]), column([]))
        unused = np.full(len(blocks), num_blocks - 1, np.uint32)
        for move in (
            {"swap_out_blocks": blocks, "swap_out_slots": slots},
            {"copy_sources": unused, "copy_destinations": blocks},
            {"swap_in_slots": slots, "swap_in_blocks": blocks},
        ):
            self._runner.collect(self._runner.launch(self._plan((), nothing, **move), received_at=0.0))

    def _plan(self, new: tuple[NewSequence, ...], rows: Rows, **moves: U32) -> StepPlan:
        self._step_id += 1
        return StepPlan(1, self._step_id, column([]), new, rows, **moves)

    def _collect(self, in_flight: deque[LaunchedStep], asks: Sequence[Ask], left: int) -> None:
        while len(in_flight) > left:
            step = in_flight.popleft()
            result = self._runner.collect(step)
            if result.errors:
                raise RuntimeError(result.errors[0].message) from step.error
            _take(result, asks)


def _sequence(slot: int, ask: Ask, blocks: U32) -> NewSequence:
    prompt = np.array(ask.prompt, np.uint32)
    if ask.pooling is not None:
        return PoolingSequence(slot + 1, slot, prompt, len(prompt), 0, blocks, ask.pooling)
    return GeneratingSequence(
        slot + 1, slot, prompt, len(prompt), 0, blocks, ask.sampling, choice_index=0, constraints=ask.constraints,
        prompt_logprobs_from=ask.prompt_logprobs_from,
    )  # fmt: skip


def _take(result: StepResult, asks: Sequence[Ask]) -> None:
    for wire_id, token in zip(result.wire_ids.tolist(), result.token_ids.tolist(), strict=True):
        asks[wire_id - 1].output.append(token)
    for pooled in result.pooled:
        asks[pooled.wire_id - 1].embedding = pooled.embedding
    prompts = result.prompt_logprobs
    if prompts is not None:
        for index, wire_id in enumerate(prompts.wire_ids.tolist()):
            part = slice(int(prompts.offsets[index]), int(prompts.offsets[index + 1]))
            asks[wire_id - 1].prompt_ranks += prompts.ranks[part].tolist()
            asks[wire_id - 1].prompt_logprobs += prompts.logprobs[part].tolist()
