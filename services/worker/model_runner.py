"""Runs steps: applies a plan to the batch, launches forward pass and sampling, and later collects what was drawn.

`launch` never waits for the device: everything it lays out is known on the host, and the one thing that is not, the
token each sequence drew last, is read on the device from where the step before left it. So a plan may be launched while
the results of those before it are not collected yet. All of a worker's steps run in launch order on one compute stream.
Pages that a plan gives to another owner are safe only because of that order: what still reads them was launched before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from services.worker.batch_state import I64, Batch, BatchState, Limits
from services.worker.errors import PlanError
from services.worker.forward_pass import create_forward_pass
from services.worker.graphs import Recorder
from services.worker.models.decoder import Decoder
from services.worker.models.encoder import Encoder
from services.worker.ops.download import Download
from services.worker.ops.interface import KVPages, Ops
from services.worker.page_copies import PageCopies, create_page_copies
from services.worker.plan import U32, Logprobs, NewSequence, PooledSequence, SequenceError, StepPlan, StepResult
from services.worker.pooling.choices import PoolingKind
from services.worker.pooling.config import PoolingConfig
from services.worker.pooling.params import PoolingParams
from services.worker.pooling.pooler import Pooled, Pooler
from services.worker.sampling.logprobs import LogprobTensors
from services.worker.sampling.sampler import Sample, create_sampler
from services.worker.tracing import SequenceSpans

logger = logging.getLogger(__name__)

NO_NUMBERS = "The model computed something that is not a number for this sequence."
STEP_FAILED = "The worker failed to compute a step of this sequence."
LAST_TOKEN = PoolingConfig(PoolingKind.LAST)
OUT_OF_MEMORY = "The worker ran out of memory in a step, and this was its newest sequence."


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """Work under way on the device."""

    plan: StepPlan
    batch: Batch
    sample: Sample | None  # None: nothing was sampled
    pooled: Pooled | None  # None: nothing was pooled
    pooling: list[PoolingParams]  # what the sequences want that `pooled` completes
    download: Download | None  # of both; None: the step has failed
    error: Exception | None  # the step's sequences failed
    received_at: float  # seconds, monotonic
    started_at: float


class ModelRunner:
    """Weights, pages and slots of one worker. Not thread-safe: one step thread owns it."""

    def __init__(
        self,
        model: Decoder | Encoder,
        ops: Ops,
        pages: Sequence[KVPages],
        limits: Limits,
        copies: PageCopies | None = None,
        pooling: PoolingConfig = LAST_TOKEN,
    ) -> None:
        """`pages` and `copies`: none for an encoder, which has no keys and values from step to step."""
        self.limits = limits
        self.ops = ops
        self.generates = isinstance(model, Decoder)
        self._forward = create_forward_pass(model, ops, pages, limits)
        # The same from epoch to epoch: recorded launches read what it drew last where they did when recorded, and a
        # slot's next sequence finds nothing of the one before.
        self._sampler = create_sampler(ops, limits.max_num_seqs, limits.vocab_size)
        self._pooler = Pooler(pooling, ops, limits.max_num_seqs, model.config.hidden_size)
        if copies is None and self.generates:
            copies = create_page_copies(ops, pages, limits.num_host_blocks)
        self._copies = copies
        self._finished_at = 0.0  # the step collected last, monotonic
        self.reset()

    @property
    def synchronous(self) -> bool:
        """Whether `launch` returns only once the work is done, so that nothing is gained by collecting later."""
        return self.ops.device.type == "cpu"

    def reset(self) -> None:
        """A new epoch: no sequences, all pages free. Weights stay."""
        self._state = BatchState(self.limits)
        self._forward.reset()
        self._spans = SequenceSpans()

    @property
    def graph_buckets(self) -> list[int]:
        """The numbers of sequences that graphs of decode-only steps can be recorded for, ascending."""
        return self._forward.buckets

    @torch.inference_mode()
    def record_graphs(self, recorder: Recorder, buckets: Sequence[int]) -> None:
        """To be called between epochs."""
        self._forward.record(recorder, buckets, self._sampler.last_tokens)

    def close(self) -> None:
        """Ends the epoch's spans."""
        self._spans.end_all()

    @property
    def num_sequences(self) -> int:
        return len(self._state)

    @torch.inference_mode()
    def launch(self, plan: StepPlan, received_at: float) -> LaunchedStep:
        """Raises PlanError if the plan contradicts the state; then, and after any other exception, only `reset` helps.
        An error of the forward pass or the sampler is not raised: it fails the sequences of this step, and no others.
        Memory that does not suffice fails the newest of them, one after the other until the step fits.
        """
        self._state.check_copies(plan)
        copies = self._copies
        if copies is not None and len(plan.swap_out_blocks):
            copies.save(_indices(plan.swap_out_blocks), _indices(plan.swap_out_slots))
        for slot in self._state.release(plan):
            self._spans.end(slot)
        if copies is not None and len(plan.swap_in_slots):
            copies.load(_indices(plan.swap_in_slots), _indices(plan.swap_in_blocks))
        if copies is not None and len(plan.copy_sources):
            copies.copy(_indices(plan.copy_sources), _indices(plan.copy_destinations))
        for sequence in plan.new_sequences:
            self._admit(sequence)
            self._spans.start(sequence)
        started_at = time.monotonic()
        batch = self._state.schedule(plan.rows)
        if not self.generates and not batch.ends.all():
            raise PlanError("an encoder computes whole sequences, and a row is a part of one")
        sample, pooled, download, error = None, None, None, None
        try:
            batch, sample, pooled = self._run_what_fits(batch)
            results = [] if sample is None else sample.tensors()
            download = Download(results if pooled is None else [*results, pooled.vectors], self.ops.device)
        except Exception as raised:
            error = raised
            for wire_id in batch.wire_ids.tolist():
                self._state.fail(wire_id, STEP_FAILED)
        wanted = [] if pooled is None else self._pooler.params(pooled)
        return LaunchedStep(plan, batch, sample, pooled, wanted, download, error, received_at, started_at)

    def finished(self, step: LaunchedStep) -> bool:
        """Whether `collect` would not wait."""
        return step.download is None or step.download.arrived()

    @torch.inference_mode()
    def collect(self, step: LaunchedStep) -> StepResult:
        """Waits for the device and brings the results to the host."""
        batch, sample = step.batch, step.sample
        errors = list(batch.failed)
        if step.error is not None:
            errors += [(wire_id, STEP_FAILED) for wire_id in batch.wire_ids.tolist()]
        wire_ids = np.zeros(0, np.uint32)
        token_ids = np.zeros(0, np.uint32)
        logprobs = None
        arrived = [] if step.download is None else [tensor.numpy() for tensor in step.download.wait()]
        pooled: list[PooledSequence] = []
        if step.error is None and step.pooled is not None:
            pooled, failed = self._finish_pooled(step.pooled, step.pooling, arrived.pop())
            errors += failed
        if step.error is None and sample is not None:
            tokens, valid, *logprob_arrays = arrived
            drawn_by = batch.wire_ids[batch.sampled_rows]
            for wire_id in drawn_by[~valid].tolist():
                self._state.fail(wire_id, NO_NUMBERS)
                errors.append((wire_id, NO_NUMBERS))
            wire_ids = drawn_by[valid].astype(np.uint32)
            token_ids = tokens[valid].astype(np.uint32)
            self._spans.count(batch.slots[batch.sampled_rows][valid])
            if sample.logprobs is not None:
                logprobs = _collect_logprobs(sample.logprobs, logprob_arrays, valid)
        finished_at = time.monotonic()
        # One launched ahead began when the one before it had ended.
        started_at = max(step.started_at, min(self._finished_at, finished_at))
        self._finished_at = finished_at
        return StepResult(
            step_id=step.plan.step_id,
            wire_ids=wire_ids,
            token_ids=token_ids,
            logprobs=logprobs,
            errors=tuple(SequenceError(wire_id, message) for wire_id, message in errors),
            num_scheduled_tokens=len(batch.token_ids),
            queue_us=_microseconds(started_at - step.received_at),
            run_us=_microseconds(finished_at - started_at) if len(batch.wire_ids) else 0,
            pooled=tuple(pooled),
        )

    def _admit(self, sequence: NewSequence) -> None:
        if sequence.pooling is None and not self.generates:
            raise PlanError(f"sequence {sequence.wire_id} is to generate, but the model is an encoder")
        if sequence.num_computed_tokens and not self.generates:
            raise PlanError(f"sequence {sequence.wire_id} comes half computed, but the model is an encoder")
        runs = self._state.admit(sequence)
        if sequence.pooling is not None:
            problem = self._pooler.admit(sequence)
            if problem is not None:
                self._state.fail(sequence.wire_id, problem)
        elif runs:
            self._sampler.admit(sequence)

    def _finish_pooled(
        self, pooled: Pooled, wanted: Sequence[PoolingParams], vectors: NDArray[np.float32]
    ) -> tuple[list[PooledSequence], list[tuple[int, str]]]:
        """The embeddings, and the sequences that have none. `vectors`: of `pooled`, on the host."""
        finished, failed = [], []
        for wire_id, count, vector, params in zip(
            pooled.wire_ids.tolist(), pooled.counts, vectors, wanted, strict=True
        ):
            if np.isfinite(vector).all():
                finished.append(PooledSequence(wire_id, self._pooler.finish(vector, int(count), params)))
            else:
                self._state.fail(wire_id, NO_NUMBERS)
                failed.append((wire_id, NO_NUMBERS))
        return finished, failed

    def _run_what_fits(self, batch: Batch) -> tuple[Batch, Sample | None, Pooled | None]:
        """The batch that was run at last, and what it sampled and pooled."""
        while True:
            try:
                return batch, *self._run(batch)
            except torch.OutOfMemoryError as error:
                logger.warning("out of memory in a step of %d sequences: %s", len(batch.slots), error)
            # Not while the error is being handled: it keeps the failed attempt's tensors alive.
            batch = self._state.leave_out_newest(batch, OUT_OF_MEMORY)

    def _run(self, batch: Batch) -> tuple[Sample | None, Pooled | None]:
        if not len(batch.slots):
            return None, None
        pooled_tokens = self._pooler.tokens(batch)
        outputs = self._forward.run(batch, self._state.block_tables, self._sampler.last_tokens, pooled_tokens)
        pooled = None if outputs.hidden is None else self._pooler.pool(outputs.hidden, batch)
        sample = None
        if outputs.logits is not None:
            sample = self._sampler.sample(outputs.logits, batch.slots[batch.sampled_rows], batch.sampled_positions)
        # Nothing is allocated any more, so this step is not repeated.
        if pooled is not None:
            self._pooler.keep(pooled)
        return sample, pooled


def _collect_logprobs(of: LogprobTensors, arrays: Sequence[NDArray[Any]], valid: NDArray[np.bool_]) -> Logprobs | None:
    """Of those rows whose token counts: `valid` [n] over the rows of the sample. `arrays`: of `of`, on the host."""
    keep = np.flatnonzero(valid[of.rows])
    if not len(keep):
        return None
    logprobs, top_token_ids, top_logprobs = arrays
    index_of = np.cumsum(valid) - 1  # a row's index among the valid ones
    counts = of.top_counts[keep]
    within = np.arange(top_token_ids.shape[1])[None, :] < counts[:, None]
    return Logprobs(
        token_indices=index_of[of.rows[keep]].astype(np.uint32),
        logprobs=logprobs[keep],
        top_counts=counts.astype(np.uint32),
        top_token_ids=top_token_ids[keep][within].astype(np.uint32),
        top_logprobs=top_logprobs[keep][within],
    )


def _indices(column: U32) -> I64:
    return column.astype(np.int64)


def _microseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e6))
