"""Measures how long a worker's steps take, over all that a step can be made of, and fits a `StepSeconds` to it.

The worker is a process of its own and gets its plans as from a scheduler, the next one while it computes the last: what
is measured is how often results come.
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
from services.scheduler.groups import WorkerLink, WorkerLostError
from services.scheduler.worker_request import WorkerRequest

_BATCHES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (16, 256, 1024, 4096, 16384)
_CHUNKS = (0, 16, 64, 256, 1024, 2048)
# A kind of step is measured so often, or for so long if that is reached sooner.
_REPEATS = 5
_SECONDS_PER_KIND = 1.0
# What decodes of a kind add to their contexts: steps to make them known and to warm up, repeats, and one ahead.
_STEPS_PER_KIND = _REPEATS + 3
# Kinds of step that would take longer are left out: nobody wants a calibration to take an hour.
_LONGEST_STEP_S = 4.0
# Every kind is measured so often at most, where the fit is not to be trusted.
_MAX_PASSES = 3
_MIN_KINDS = 8  # from which that can be told
_GREEDY = sampling_pb2.SamplingParams(temperature=0, top_p=1, repetition_penalty=1)


@dataclass(frozen=True, slots=True)
class StepKind:
    """So many sequences decode at a context of so many tokens, beside a chunk of a prompt that begins at a position."""

    num_decodes: int
    context: int
    chunk: int
    position: int

    @property
    def num_tokens(self) -> int:
        return self.num_decodes + self.chunk

    @property
    def features(self) -> tuple[float, ...]:
        """In the order of StepSeconds' fields."""
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
    seconds: float  # median


@dataclass(frozen=True, slots=True)
class Calibration:
    step: StepSeconds
    measured: list[Measured]
    median_error: float  # relative
    worst_error: float  # relative

    @property
    def is_trusted(self) -> bool:
        return self.median_error <= TRUSTED_ERROR


def kinds_of(hello: WorkerHello) -> list[StepKind]:
    """What fits into a worker's limits, the cheapest first."""
    kinds = []
    for num_decodes in _BATCHES:
        for context in _CONTEXTS if num_decodes else (0,):
            for chunk in _CHUNKS:
                for position in (0, *_CONTEXTS[1:]) if chunk else (0,):
                    if num_decodes and chunk and not (position in (0, 1024) and chunk in (64, 256)):
                        continue  # mixed steps only say whether the parts add up
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
    """Measures all kinds of step, and again where the fit is not to be trusted, some times. What else runs on a
    machine only makes steps longer, so the least of a kind's measurements counts. May return a fit without trust."""
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
    """One by one; None for a kind that would have taken too long, by those before it. `planner`: the link's one. Raises
    WorkerLostError."""
    results = link.results()
    measured: list[Measured] = []
    for kind in kinds:
        if len(measured) >= _MIN_KINDS and fit(measured).step.predict(np.array([kind.features]))[0] > _LONGEST_STEP_S:
            yield None
            continue
        plans = planner.plans(kind)
        link.send(next(plans))
        link.send(next(plans))
        last = time.monotonic()
        seconds: list[float] = []
        for plan in plans:
            # One is always ahead, so that the worker never waits for us.
            link.send(plan)
            seconds.append(await _gap(results, last))
            last += seconds[-1]
            if sum(seconds) > _SECONDS_PER_KIND and len(seconds) > 2:
                break
        for _ in range(2):
            await _gap(results, last)
        # The first makes sequences known, the second warms up caches and kernels.
        measured.append(Measured(kind, statistics.median(seconds[2:])))
        yield measured[-1]


async def _gap(results: AsyncIterator[worker_pb2.StepResult | worker_pb2.GrammarPrepared], last: float) -> float:
    message = await anext(results)
    assert isinstance(message, worker_pb2.StepResult), "no grammar was asked for"
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
    """Plans of one kind after another, on one stream: names are never used twice, and blocks always."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._step_id = 0
        self._wire_id = 0
        self._running: list[int] = []  # wire ids

    def plans(self, kind: StepKind) -> Iterator[StepPlan[WorkerRequest]]:
        """A step in which the decodes are made known, and then the kind's own, at its context on average."""
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
        """`rows`: wire id, tokens to compute, position of the first. Slots are in their order."""
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
