"""Measures how long a worker's steps take for many mixes of decodes and prompt chunks, and fits a linear model of the
durations (`StepSeconds`).

The worker is a separate process. As in a cluster, each plan arrives while the worker computes the previous plan. The
duration of a step is the time from the previous step's result to its own result.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quire.inference.v1 import sampling_pb2
from quire.simulator.device import TRUSTED_ERROR, Matrix, StepSeconds
from quire.worker.v1 import worker_pb2
from services.scheduler.converters import WorkerHello, result_from_proto
from services.scheduler.core import U32, Generate, Moves, NewSequence, Rows, StepPlan, pairs
from services.scheduler.core import Sequence as CoreSequence
from services.scheduler.worker_groups import WorkerLink, WorkerLostError, WorkerMessage
from services.scheduler.worker_request import WorkerRequest

_BATCHES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (16, 256, 1024, 4096, 16384)
_CHUNKS = (0, 16, 64, 256, 1024, 2048)
# Of each kind of step, _REPEATS - 1 steps are measured. If the steps of a kind take longer than _SECONDS_PER_KIND in
# total, fewer are measured, but at least one.
_REPEATS = 5
_SECONDS_PER_KIND = 1.0
# Number of steps that are planned for each kind. Every step adds a token to the context of each decode. The first step
# sends the sequences to the worker, the second is for warm-up, and the last two are not measured.
_STEPS_PER_KIND = _REPEATS + 3
# Kinds of step whose predicted duration is longer than _LONGEST_STEP_S are not measured. Otherwise a calibration could
# take an hour.
_LONGEST_STEP_S = 4.0
# A calibration gives no worker up.
_LATE_AFTER_S = 3600.0
# Maximum number of times that all kinds are measured. They are measured again only if the fit is poor.
_MAX_PASSES = 3
_MIN_KINDS = 8  # minimum number of measured kinds before a fit is used to predict the duration of further kinds
_GREEDY = sampling_pb2.SamplingParams(temperature=0, top_p=1, repetition_penalty=1)


@dataclass(frozen=True, slots=True)
class StepKind:
    """A mix of work in one step: `num_decodes` sequences that decode at a context of `context` tokens, and a prompt
    chunk of `chunk` tokens that begins at `position`."""

    num_decodes: int
    context: int
    chunk: int
    position: int

    @property
    def num_tokens(self) -> int:
        return self.num_decodes + self.chunk

    @property
    def features(self) -> tuple[float, ...]:
        """The variables of the linear model, one for each coefficient in StepSeconds, in the same order."""
        read_by_chunk = self.position + self.chunk if self.chunk else 0
        decoded = self.num_decodes * self.context
        sampled = self.num_decodes + (self.chunk > 0)
        return (
            1.0, self.num_tokens, sampled, decoded + read_by_chunk, decoded + pairs(self.position, self.chunk),
        )  # fmt: skip

    def blocks_per_decode(self, block_size: int) -> int:
        return -(-(self.context + _STEPS_PER_KIND) // block_size)

    def num_blocks(self, block_size: int) -> int:
        return self.num_decodes * self.blocks_per_decode(block_size) + -(-(self.position + self.chunk) // block_size)


@dataclass(frozen=True, slots=True)
class Measured:
    kind: StepKind
    seconds: float  # median duration of the measured steps


@dataclass(frozen=True, slots=True)
class Calibration:
    step: StepSeconds
    measured: list[Measured]
    median_error: float  # median of the fit's relative errors, over the measured kinds
    worst_error: float  # largest of the fit's relative errors

    @property
    def is_trusted(self) -> bool:
        return self.median_error <= TRUSTED_ERROR


def kinds_of(hello: WorkerHello) -> list[StepKind]:
    """Returns the kinds of step that fit into the worker's limits, cheapest first."""
    kinds = []
    for num_decodes in _BATCHES:
        for context in _CONTEXTS if num_decodes else (0,):
            for chunk in _CHUNKS:
                for position in (0, *_CONTEXTS[1:]) if chunk else (0,):
                    if num_decodes and chunk and not (position in (0, 1024) and chunk in (64, 256)):
                        # Leaves out most kinds with both decodes and a chunk: a few are enough to check that the
                        # durations of decodes and of a chunk add up.
                        continue
                    kind = StepKind(num_decodes, context, chunk, position)
                    fits = (
                        0 < kind.num_tokens <= hello.max_num_batched_tokens
                        and num_decodes + (chunk > 0) <= hello.max_num_seqs
                        and max(context + _STEPS_PER_KIND, position + chunk) <= hello.model.max_model_len
                        and kind.num_blocks(hello.block_size) <= hello.num_blocks
                    )
                    if fits:
                        kinds.append(kind)
    return sorted(kinds, key=lambda kind: (kind.num_tokens, kind.features[3]))


async def fit_that_is_trusted(measure_all: Callable[[], AsyncIterator[Measured | None]]) -> Calibration:
    """Measures all kinds of step and fits the linear model of their durations. While the fit is poor, measures all
    kinds again, up to _MAX_PASSES times in all. Of several measurements of a kind, the shortest counts, because other
    programs on the machine can only make steps longer. The returned fit can still be poor."""
    least: dict[StepKind, Measured] = {}
    for _ in range(_MAX_PASSES):
        async for one in measure_all():
            if one is not None and (one.kind not in least or one.seconds < least[one.kind].seconds):
                least[one.kind] = one
        fitted = fit(list(least.values()))
        if fitted.is_trusted:
            break
    return fitted


async def measure(link: WorkerLink, kinds: Sequence[StepKind], planner: Planner) -> AsyncIterator[Measured | None]:
    """Measures the kinds one by one. Yields None for a kind that would take too long according to the kinds before it.
    `planner`: use one planner for all calls on a link. Raises WorkerLostError."""
    results = link.results()
    measured: list[Measured] = []
    for kind in kinds:
        if len(measured) >= _MIN_KINDS and fit(measured).step.predict(np.array([kind.features]))[0] > _LONGEST_STEP_S:
            yield None
            continue
        plans = planner.plans(kind)
        link.send(next(plans), _LATE_AFTER_S)
        link.send(next(plans), _LATE_AFTER_S)
        last = time.monotonic()
        seconds: list[float] = []
        for plan in plans:
            # Send the next plan before an earlier plan's result arrives, so that the worker never waits for a plan.
            link.send(plan, _LATE_AFTER_S)
            seconds.append(await _gap(results, last))
            last += seconds[-1]
            if sum(seconds) > _SECONDS_PER_KIND and len(seconds) > 2:
                break
        for _ in range(2):
            await _gap(results, last)
        # Skip two steps: the first sends the sequences to the worker, the second warms up caches and kernels.
        measured.append(Measured(kind, statistics.median(seconds[2:])))
        yield measured[-1]


async def _gap(results: AsyncIterator[WorkerMessage], last: float) -> float:
    message = await anext(results)
    assert isinstance(message, worker_pb2.StepResult), (
        "the plans contain no grammar, and the claim takes no part in a balance"
    )
    result = result_from_proto(message)
    if result.errors:
        raise WorkerLostError(f"the worker failed a step: {result.errors[0][1]}")
    return time.monotonic() - last


def fit(measured: list[Measured]) -> Calibration:
    features: Matrix = np.array([one.kind.features for one in measured])
    seconds: Matrix = np.array([one.seconds for one in measured])
    step = StepSeconds.fit(features, seconds)
    errors = np.abs(step.predict(features) / seconds - 1)
    return Calibration(step, measured, float(np.median(errors)), float(errors.max()))


class Planner:
    """Builds the plans that measure the kinds of step, one kind after another. All plans are for the same link to a
    worker. Wire ids are never reused; all kinds use the same blocks."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._step_id = 0
        self._wire_id = 0
        self._running: list[int] = []  # wire ids of the sequences at the worker

    def plans(self, kind: StepKind) -> Iterator[StepPlan[WorkerRequest]]:
        """Yields a first step that sends the decoding sequences to the worker, then the steps to measure. The average
        context of the measured steps is the kind's context."""
        released = self._running
        position = kind.context - _STEPS_PER_KIND // 2
        blocks_each = kind.blocks_per_decode(self._block_size)
        decodes = [
            self._sequence(slot, position + 1, position, range(slot * blocks_each, (slot + 1) * blocks_each))
            for slot in range(kind.num_decodes)
        ]
        wire_ids = self._running = [new.wire_id for new in decodes]
        yield self._plan(released, decodes, [(wire_id, 1, position) for wire_id in wire_ids])
        chunk_blocks = range(kind.num_decodes * blocks_each, kind.num_blocks(self._block_size))
        released = []
        for step in range(1, _STEPS_PER_KIND):
            rows = [(wire_id, 1, position + step) for wire_id in wire_ids]
            new: list[NewSequence[WorkerRequest]] = []
            if kind.chunk:
                new = [self._sequence(kind.num_decodes, kind.position + kind.chunk, kind.position, chunk_blocks)]
                rows.append((new[0].wire_id, kind.chunk, kind.position))
            plan = self._plan(released, new, rows)
            released = [sequence.wire_id for sequence in new]
            self._running = wire_ids + released
            yield plan

    def _plan(
        self, released: list[int], new: list[NewSequence[WorkerRequest]], rows: list[tuple[int, int, int]]
    ) -> StepPlan[WorkerRequest]:
        """Builds a plan. `rows`: for each sequence, its wire id, the number of tokens to compute and the position of
        the first of them. Row i uses slot i."""
        self._step_id += 1
        columns = [array(U32, column) for column in zip(*rows, strict=True)] or [array(U32) for _ in range(3)]
        slots = array(U32, range(len(rows)))
        offsets = array(U32, [0] * (len(rows) + 1))
        return StepPlan(
            step_id=self._step_id,
            released_wire_ids=array(U32, released),
            new_sequences=new,
            rows=Rows(columns[0], slots, columns[1], columns[2], offsets),
            sampling_wire_ids=columns[0],
            num_pairs=0.0,
            num_prompt_logprobs=0,
            moves=Moves(),
        )

    def _sequence(self, slot: int, num_tokens: int, num_computed: int, block_ids: range) -> NewSequence[WorkerRequest]:
        self._wire_id += 1
        request = WorkerRequest(self._wire_id, array(U32, [1]) * num_tokens, Generate(1), sampling=_GREEDY)
        return NewSequence(CoreSequence(request, 0), self._wire_id, slot, num_computed, list(block_ids), None)
