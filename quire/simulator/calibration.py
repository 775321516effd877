"""Measures how long this device's steps take, over all that a step can be made of, and fits a `StepSeconds` to it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from services.worker.model_runner import ModelRunner
from services.worker.plan import NewSequence, Rows, StepPlan
from services.worker.sampling.params import SamplingParams

from .device import Matrix, StepSeconds

_BATCHES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (16, 256, 1024, 4096, 16384)
_CHUNKS = (0, 16, 64, 256, 1024, 2048)
# A kind of step is measured so often, or for so long if that is reached sooner.
_REPEATS = 5
_SECONDS_PER_KIND = 1.0
# Kinds of step that would take longer are left out: nobody wants a calibration to take an hour.
_LONGEST_STEP_S = 4.0
_MIN_KINDS = 8  # from which that can be told
_SAMPLING = SamplingParams(temperature=0.0)


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
        pairs = self.chunk * (self.position + (self.chunk + 1) / 2)
        sampled = self.num_decodes + (self.chunk > 0)
        return (1.0, self.num_tokens, sampled, decoded + read_by_chunk, decoded + pairs)


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


def kinds_of(runner: ModelRunner) -> list[StepKind]:
    """What fits into the runner's limits, the cheapest first."""
    limits = runner.limits
    kinds = []
    for num_decodes in _BATCHES:
        for context in _CONTEXTS if num_decodes else (0,):
            for chunk in _CHUNKS:
                for position in (0, *_CONTEXTS[1:]) if chunk else (0,):
                    if num_decodes and chunk and not (position in (0, 1024) and chunk in (64, 256)):
                        continue  # mixed steps only say whether the parts add up
                    kind = StepKind(num_decodes, context, chunk, position)
                    fits = (
                        0 < kind.num_tokens <= limits.max_num_batched_tokens
                        and num_decodes + (chunk > 0) <= limits.max_num_seqs
                        and max(context + 3 * _REPEATS, position + chunk) <= limits.max_model_len
                        and _num_blocks(kind, limits.block_size) <= limits.num_blocks
                    )
                    if fits:
                        kinds.append(kind)
    return sorted(kinds, key=lambda kind: (kind.num_tokens, kind.features[3]))


def measure(runner: ModelRunner, kinds: Sequence[StepKind]) -> Iterator[Measured | None]:
    """One by one; None for a kind that would have taken too long, by those before it."""
    measured: list[Measured] = []
    for kind in kinds:
        if len(measured) >= _MIN_KINDS and fit(measured).step.predict(np.array([kind.features]))[0] > _LONGEST_STEP_S:
            yield None
            continue
        measured.append(Measured(kind, statistics.median(_time(runner, kind))))
        yield measured[-1]


def fit(measured: list[Measured]) -> Calibration:
    features: Matrix = np.array([one.kind.features for one in measured])
    seconds: Matrix = np.array([one.seconds for one in measured])
    step = StepSeconds.fit(features, seconds)
    errors = np.abs(step.predict(features) / seconds - 1)
    return Calibration(step, measured, float(np.median(errors)), float(errors.max()))


def _num_blocks(kind: StepKind, block_size: int) -> int:
    per_decode = -(-(kind.context + 3 * _REPEATS) // block_size)
    return kind.num_decodes * per_decode + -(-(kind.position + kind.chunk) // block_size)


def _time(runner: ModelRunner, kind: StepKind) -> list[float]:
    """Seconds of each repeat, without the first, which warms up caches and kernels."""
    steps = _Steps(runner, kind)
    steps.start_decodes()
    steps.run()
    seconds: list[float] = []
    while len(seconds) < _REPEATS and (not seconds or sum(seconds) < _SECONDS_PER_KIND):
        seconds.append(steps.run())
    runner.reset()
    return seconds


class _Steps:
    """Plans of one kind, one after the other, as a scheduler would send them."""

    def __init__(self, runner: ModelRunner, kind: StepKind) -> None:
        self._runner = runner
        self._kind = kind
        self._step_id = 0
        # The repeats are at the context asked for on average.
        self._num_computed = kind.context - 3 - _REPEATS // 2
        block_size = runner.limits.block_size
        self._blocks_per_decode = -(-(kind.context + 3 * _REPEATS) // block_size)
        first = kind.num_decodes * self._blocks_per_decode
        self._chunk_blocks = np.arange(first, first + -(-(kind.position + kind.chunk) // block_size), dtype=np.uint32)
        self._chunk_wire_id = 0

    def start_decodes(self) -> None:
        """A step in which they are made known, and computed but for their last token."""
        kind = self._kind
        if not kind.num_decodes:
            return
        blocks = np.arange(kind.num_decodes * self._blocks_per_decode, dtype=np.uint32)
        sequences = [
            self._sequence(slot + 1, slot, self._num_computed + 1, self._num_computed, table)
            for slot, table in enumerate(np.split(blocks, kind.num_decodes))
        ]
        self._launch(sequences, [], np.arange(1, kind.num_decodes + 1), np.ones(kind.num_decodes))

    def run(self) -> float:
        """Seconds of one step."""
        kind = self._kind
        wire_ids, num_scheduled = list(range(1, kind.num_decodes + 1)), [1] * kind.num_decodes
        sequences, released = [], []
        if kind.chunk:
            if self._chunk_wire_id:
                released.append(self._chunk_wire_id)
            self._chunk_wire_id = max(self._chunk_wire_id, kind.num_decodes) + 1
            length = kind.position + kind.chunk
            sequences.append(
                self._sequence(self._chunk_wire_id, kind.num_decodes, length, kind.position, self._chunk_blocks)
            )
            wire_ids.append(self._chunk_wire_id)
            num_scheduled.append(kind.chunk)
        return self._launch(sequences, released, np.array(wire_ids), np.array(num_scheduled))

    def _launch(
        self, sequences: list[NewSequence], released: list[int], wire_ids: np.ndarray, num_scheduled: np.ndarray
    ) -> float:
        kind = self._kind
        num_rows = len(wire_ids)
        num_computed = np.full(num_rows, self._num_computed)
        if num_rows > kind.num_decodes:
            num_computed[-1] = kind.position
        rows = Rows(
            wire_ids.astype(np.uint32), np.arange(num_rows, dtype=np.uint32), num_scheduled.astype(np.uint32),
            num_computed.astype(np.uint32), np.zeros(num_rows + 1, np.uint32), np.zeros(0, np.uint32),
        )  # fmt: skip
        self._step_id += 1
        plan = StepPlan(0, self._step_id, np.array(released, np.uint32), tuple(sequences), rows)
        start = time.monotonic()
        self._runner.collect(self._runner.launch(plan, start))
        seconds = time.monotonic() - start
        self._num_computed += 1
        return seconds

    @staticmethod
    def _sequence(wire_id: int, slot: int, num_tokens: int, num_computed: int, block_ids: np.ndarray) -> NewSequence:
        return NewSequence(
            wire_id=wire_id, slot=slot, token_ids=np.ones(num_tokens, np.uint32), num_prompt_tokens=num_tokens,
            num_computed_tokens=num_computed, block_ids=block_ids, sampling=_SAMPLING, choice_index=0,
        )  # fmt: skip
