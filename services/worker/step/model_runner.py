"""Runs steps: applies a plan to the batch, launches forward pass and sampling, and later collects the results.

`launch` does not wait for the step. The host knows every input except the token that each sequence sampled last, and
the device reads that token from `last_tokens`, where the previous step wrote it. So a plan can be launched before the
results of earlier plans are collected. Only constraints such as a grammar make `launch` wait for the tokens of earlier
steps. All steps of a worker run in launch order on one compute stream. That order makes it safe to give a page to
another sequence: every kernel that still reads the page was launched earlier.

The runner calls the parts of a step in order and leaves their work to other modules. `generation.py` and `sampling/`
interpret sampling parameters and constraints. The scheduler decides which sequences run, and in which blocks.
`service/` handles gRPC and protobuf. `forward_pass.py` runs the model, and `device.py` holds the parts that depend on
the kind of device.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from services.worker.ops import Ops
from services.worker.pages import PageCopies
from services.worker.plan import (
    I64,
    U32,
    Batch,
    BatchState,
    Limits,
    NewSequence,
    PooledSequence,
    SequenceError,
    StepPlan,
    StepResult,
)
from services.worker.step.clock import Event, StepClock
from services.worker.step.computed import NOTHING, Computed, collect_logprobs, collect_prompt_logprobs
from services.worker.step.device import Device
from services.worker.step.forward_pass import ForwardPass
from services.worker.step.generation import Generation
from services.worker.step.graphs import Recorder
from services.worker.step.pooler import Pooled, Pooler
from services.worker.step.spans import SequenceSpans
from services.worker.transfers import Download

logger = logging.getLogger(__name__)

NO_NUMBERS = "The model computed something that is not a number for this sequence."
STEP_FAILED = "The worker failed to compute a step of this sequence."
OUT_OF_MEMORY = "The worker ran out of memory in a step, and this was its newest sequence."


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that runs on the device."""

    plan: StepPlan
    batch: Batch
    computed: Computed
    download: Download | None  # copy of the results to the host; None: the step failed
    error: Exception | None  # error because of which all sequences of the step fail
    received_at: float  # seconds, monotonic
    started_at: float
    num_sequences: int  # number of sequences that hold a slot after the plan was applied
    begun: Event | None = None  # start of the step on the device, if it is timed


class ModelRunner:
    """Runs the steps of one worker, whose weights, pages and slots it owns. Not thread-safe: only the step thread calls
    it."""

    def __init__(
        self,
        device: Device,
        limits: Limits,
        clock: StepClock,
        forward: ForwardPass,
        generation: Generation,
        pooler: Pooler,
        copies: PageCopies,
    ) -> None:
        """`clock`: the same clock that `forward` was created with. `forward` marks on it when a step's model begins."""
        self.device = device
        self.limits = limits
        self._clock = clock
        self._forward = forward
        self._generation = generation
        self._pooler = pooler
        self._copies = copies
        self._finished_at = 0.0  # time at which the last step was collected, in monotonic seconds
        self.reset()

    @property
    def ops(self) -> Ops:
        return self.device.ops

    def reset(self) -> None:
        """Forgets all sequences and frees all pages. Weights stay loaded. Called before each epoch, the time for which
        one scheduler owns the worker."""
        self._state = BatchState(self.limits)
        self._forward.reset()
        self._clock.reset()
        self._generation.reset()
        self._spans = SequenceSpans()

    @property
    def graph_buckets(self) -> list[int]:
        """Batch sizes, ascending, for which graphs of decode-only steps can be recorded. The batch size is the number
        of sequences."""
        return self._forward.buckets

    @torch.inference_mode()
    def record_graphs(self, recorder: Recorder, buckets: Sequence[int]) -> None:
        """Records a CUDA graph of a decode-only step for each number of sequences in `buckets`. Call it only while no
        scheduler owns the worker."""
        self._forward.record(recorder, buckets, self._generation.last_tokens)

    def close(self) -> None:
        """Ends the epoch's spans."""
        self._spans.end_all()

    @property
    def num_sequences(self) -> int:
        return len(self._state)

    @torch.inference_mode()
    def launch(self, plan: StepPlan, received_at: float) -> LaunchedStep:
        """Launches a step. Raises PlanError if the plan contradicts the state. After any exception, call `reset` before
        the next launch. An error in the forward pass or the sampler is not raised: it fails the sequences of this step
        only. If memory runs out, the newest sequence fails, then the next newest, until the step fits.
        """
        self._state.check_copies(plan)
        copies = self._copies
        if len(plan.swap_out_blocks):
            copies.save(_indices(plan.swap_out_blocks), _indices(plan.swap_out_slots))
        for slot in self._state.release(plan):
            self._spans.end(slot)
            self._generation.release(slot)
        if len(plan.swap_in_slots):
            copies.load(_indices(plan.swap_in_slots), _indices(plan.swap_in_blocks))
        if len(plan.copy_sources):
            copies.copy(_indices(plan.copy_sources), _indices(plan.copy_destinations))
        for sequence in plan.new_sequences:
            self._admit(sequence)
            self._spans.start(sequence)
        started_at = time.monotonic()
        batch = self._state.schedule(plan.rows)
        computed, download, error = NOTHING, None, None
        try:
            batch, computed = self._run_what_fits(batch)
            download = Download(computed.tensors(), self.ops.device)
            self._generation.launched(batch, computed.sample, download)
        except Exception as raised:
            computed, error = NOTHING, raised
            for wire_id in batch.wire_ids.tolist():
                self._state.fail(SequenceError(wire_id, STEP_FAILED))
        return LaunchedStep(
            plan, batch, computed, download, error, received_at, started_at, len(self._state), self._clock.launched()
        )

    def finished(self, step: LaunchedStep) -> bool:
        """Returns whether `collect` would return without waiting."""
        return step.download is None or step.download.arrived()

    @torch.inference_mode()
    def collect(self, step: LaunchedStep) -> StepResult:
        """Waits for the step and returns its results on the host."""
        batch, sample = step.batch, step.computed.sample
        errors = list(batch.failed)
        if step.error is not None:
            errors += [SequenceError(wire_id, STEP_FAILED) for wire_id in batch.wire_ids.tolist()]
        wire_ids = np.zeros(0, np.uint32)
        token_ids = np.zeros(0, np.uint32)
        logprobs = None
        arrived = [] if step.download is None else [tensor.numpy() for tensor in step.download.wait()]
        if step.download is not None:
            self._generation.collected(step.download)
        sample_columns, prompt_columns, pooled_columns = step.computed.split(arrived)
        of_prompts = None
        embeddings: tuple[PooledSequence, ...] = ()
        # By wire id, the errors of sequences whose results are not finite or for which no token is allowed.
        invalid: dict[int, SequenceError] = {}
        if step.computed.prompt is not None:
            assert batch.prompt is not None
            of_prompts, without_numbers = collect_prompt_logprobs(batch.prompt, prompt_columns)
            invalid |= {wire_id: SequenceError(wire_id, NO_NUMBERS) for wire_id in without_numbers}
        if step.computed.pooled is not None:
            embeddings, without_numbers = self._finish_pooled(step.computed.pooled, *pooled_columns)
            invalid |= {wire_id: SequenceError(wire_id, NO_NUMBERS) for wire_id in without_numbers}
        if sample is not None:
            tokens, valid, *logprob_arrays = sample_columns
            drawn_by, slots = batch.wire_ids[batch.sampled_rows], batch.slots[batch.sampled_rows]
            for slot, wire_id in zip(slots[~valid].tolist(), drawn_by[~valid].tolist(), strict=True):
                nothing_left = self._generation.failure(slot, wire_id)
                invalid.setdefault(wire_id, nothing_left or SequenceError(wire_id, NO_NUMBERS))
            if invalid:
                valid = valid & ~np.isin(drawn_by, list(invalid))
            wire_ids = drawn_by[valid].astype(np.uint32)
            token_ids = tokens[valid].astype(np.uint32)
            self._spans.count(slots[valid])
            if sample.logprobs is not None:
                logprobs = collect_logprobs(sample.logprobs, logprob_arrays, valid)
        for error in invalid.values():
            self._state.fail(error)
        errors.extend(invalid.values())
        device = self._clock.collected(step.begun, None if step.download is None else step.download.event)
        finished_at = time.monotonic()
        # If the step was launched while the previous step was still running, it starts when the previous step ends.
        started_at = max(step.started_at, min(self._finished_at, finished_at))
        self._finished_at = finished_at
        return StepResult(
            step_id=step.plan.step_id,
            wire_ids=wire_ids,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=of_prompts,
            errors=tuple(errors),
            num_scheduled_tokens=len(batch.token_ids),
            queue_us=_microseconds(started_at - step.received_at),
            run_us=_microseconds(finished_at - started_at) if len(batch.wire_ids) else 0,
            pooled=embeddings,
            device=device,
        )

    def _admit(self, sequence: NewSequence) -> None:
        if not self._state.admit(sequence):
            return
        try:
            problem = sequence.admit(self._generation.admit, self._pooler.admit)
        except torch.OutOfMemoryError as error:
            logger.warning(
                "out of memory for a sequence's penalties or biases: %s",
                str(error),
                extra={"request_id": sequence.request_id},
            )
            self._state.fail(SequenceError(sequence.wire_id, OUT_OF_MEMORY))
            return
        if problem is not None:
            self._state.fail(SequenceError(sequence.wire_id, problem, is_request_at_fault=True))

    def _finish_pooled(
        self, pooled: Pooled, vectors: NDArray[np.float32]
    ) -> tuple[tuple[PooledSequence, ...], list[int]]:
        """Returns the vectors, and the wire ids of sequences whose vectors are not finite. `vectors`: host copy of
        `pooled.vectors`."""
        finished, without_numbers = [], []
        for wire_id, params, count, vector in zip(
            pooled.wire_ids.tolist(), pooled.params, pooled.counts.tolist(), vectors, strict=True
        ):
            if np.isfinite(vector).all():
                finished.append(PooledSequence(wire_id, self._pooler.output.finish(vector, count, params)))
            else:
                without_numbers.append(wire_id)
        return tuple(finished), without_numbers

    def _run_what_fits(self, batch: Batch) -> tuple[Batch, Computed]:
        """Runs the batch. If memory runs out, leaves out the newest sequence and runs the rest, until the step fits.
        Returns the batch that finally ran, and its results."""
        while True:
            try:
                return batch, self._run(batch)
            except torch.OutOfMemoryError as error:
                # Log the error as text: a log record that holds it would keep the failed attempt's tensors alive.
                logger.warning("out of memory in a step of %d sequences: %s", len(batch.slots), str(error))
            # Go on after the except block: inside it, the handled error would keep the failed attempt's tensors alive.
            batch = self._state.leave_out_newest(batch, OUT_OF_MEMORY)

    def _run(self, batch: Batch) -> Computed:
        if not len(batch.slots):
            return NOTHING
        pooled_tokens = self._pooler.tokens(batch)
        wanted = np.concatenate((batch.tokens_with_logits, pooled_tokens))
        hidden = self._forward.run(batch, self._state.block_tables, self._generation.last_tokens, wanted)
        num_sampled, num_with_logits = len(batch.sampled_rows), len(batch.tokens_with_logits)
        prompt = self._generation.prompt_logprobs(hidden[num_sampled:num_with_logits], batch)
        pooled = self._pooler.pool(hidden[num_with_logits:], batch) if len(pooled_tokens) else None
        # Sampling comes last, after everything that can fail, because it changes the state of the slots.
        sample = self._generation.sample(hidden[:num_sampled], batch)
        # After sampling nothing is allocated. So the step cannot run out of memory any more, and will not be repeated.
        if pooled is not None:
            self._pooler.keep(pooled)
        return Computed(sample, prompt, pooled)


def _indices(column: U32) -> I64:
    return column.astype(np.int64)


def _microseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e6))
