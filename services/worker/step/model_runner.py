"""Runs steps: applies a plan to the batch, launches forward pass and sampling, and later collects what was drawn.

`launch` never waits for the device: everything it lays out is known on the host, and the one thing that is not, the
token each sequence drew last, is read on the device from where the step before left it. So a plan may be launched while
the results of those before it are not collected yet. All of a worker's steps run in launch order on one compute stream.
Pages that a plan gives to another owner are safe only because of that order: what still reads them was launched before.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.errors import PlanError
from services.worker.models import Decoder, Encoder
from services.worker.ops import Download, KVPages, Ops
from services.worker.pages import PageCopies, create_page_copies
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
from services.worker.pooling import PoolingConfig, PoolingKind
from services.worker.sampling import Grammars, SlotConstraints, TokenMask, compute_prompt_logprobs, create_sampler
from services.worker.step.clock import Event
from services.worker.step.computed import NOTHING, Computed, collect_logprobs, collect_prompt_logprobs
from services.worker.step.create import create_device_check, create_forward_pass, create_step_clock
from services.worker.step.graphs import Recorder
from services.worker.step.pooler import Pooled, Pooler
from services.worker.step.spans import SequenceSpans

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
    computed: Computed
    download: Download | None  # of what was computed; None: the step has failed
    error: Exception | None  # the step's sequences failed
    received_at: float  # seconds, monotonic
    started_at: float
    num_sequences: int  # in slots once the plan had been applied
    begun: Event | None = None  # on the device, where it is timed


class ModelRunner:
    """Weights, pages and slots of one worker. Not thread-safe: one step thread owns it."""

    def __init__(
        self,
        model: Decoder | Encoder,
        ops: Ops,
        pages: Sequence[KVPages],
        limits: Limits,
        copies: PageCopies | None = None,
        grammars: Grammars | None = None,
        pooling: PoolingConfig = LAST_TOKEN,
    ) -> None:
        """`pages` and `copies`: none for an encoder, which has no keys and values from step to step. `grammars`: of the
        model's tokenizer, for sequences that want one."""
        self.limits = limits
        self.ops = ops
        self.device_check = create_device_check(ops.device)
        self._decoder = model if isinstance(model, Decoder) else None
        self._clock = create_step_clock(ops.device)
        self._forward = create_forward_pass(model, ops, pages, limits, self._clock)
        # The same from epoch to epoch: recorded launches read what it drew last where they did when recorded, and a
        # slot's next sequence finds nothing of the one before.
        self._sampler = create_sampler(ops, limits.max_num_seqs, limits.vocab_size)
        self._pooler = Pooler(pooling, ops, limits.max_num_seqs, model.config.hidden_size)
        if copies is None and self.generates:
            copies = create_page_copies(ops, pages, limits.num_host_blocks)
        self._copies = copies
        self._grammars = grammars
        self._finished_at = 0.0  # the step collected last, monotonic
        self.reset()

    @property
    def generates(self) -> bool:
        """Whether the model is a decoder; an encoder's sequences are all pooled."""
        return self._decoder is not None

    @property
    def synchronous(self) -> bool:
        """Whether `launch` returns only once the work is done, so that nothing is gained by collecting later."""
        return self.ops.device.type == "cpu"

    def reset(self) -> None:
        """A new epoch: no sequences, all pages free. Weights stay."""
        self._state = BatchState(self.limits)
        self._forward.reset()
        self._clock.reset()
        limits = self.limits
        self._constraints = SlotConstraints(limits.max_num_seqs, limits.vocab_size, self._grammars)
        # Steps whose tokens the constraints have not seen yet, oldest first.
        self._unobserved: deque[tuple[Batch, Download]] = deque()
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
            self._constraints.release(slot)
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
        computed, download, error = NOTHING, None, None
        try:
            batch, computed = self._run_what_fits(batch)
            download = Download(computed.tensors(), self.ops.device)
            drawn_for = batch.slots[batch.sampled_rows]
            if computed.sample is not None and self._constraints.watched[drawn_for].any():
                self._constraints.draw(drawn_for)
                self._unobserved.append((batch, download))
        except Exception as raised:
            computed, error = NOTHING, raised
            for wire_id in batch.wire_ids.tolist():
                self._state.fail(SequenceError(wire_id, STEP_FAILED))
        return LaunchedStep(
            plan, batch, computed, download, error, received_at, started_at, len(self._state), self._clock.launched()
        )

    def finished(self, step: LaunchedStep) -> bool:
        """Whether `collect` would not wait."""
        return step.download is None or step.download.arrived()

    @torch.inference_mode()
    def collect(self, step: LaunchedStep) -> StepResult:
        """Waits for the device and brings the results to the host."""
        batch, sample = step.batch, step.computed.sample
        errors = list(batch.failed)
        if step.error is not None:
            errors += [SequenceError(wire_id, STEP_FAILED) for wire_id in batch.wire_ids.tolist()]
        wire_ids = np.zeros(0, np.uint32)
        token_ids = np.zeros(0, np.uint32)
        logprobs = None
        arrived = [] if step.download is None else [tensor.numpy() for tensor in step.download.wait()]
        if self._unobserved and self._unobserved[0][1] is step.download:
            self._observe(*self._unobserved.popleft())
        sample_columns, prompt_columns, pooled_columns = step.computed.split(arrived)
        of_prompts = None
        embeddings: tuple[PooledSequence, ...] = ()
        invalid: dict[int, SequenceError] = {}  # sequences whose results are none
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
                nothing_left = self._constraints.failure(slot, wire_id)
                error = SequenceError(wire_id, nothing_left or NO_NUMBERS, is_request_at_fault=bool(nothing_left))
                invalid.setdefault(wire_id, error)
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
        # One launched ahead began when the one before it had ended.
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
        if sequence.pooling is None and not self.generates:
            raise PlanError(f"sequence {sequence.wire_id} is to generate, but the model is an encoder")
        if sequence.num_computed_tokens and not self.generates:
            raise PlanError(f"sequence {sequence.wire_id} comes half computed, but the model is an encoder")
        runs, problem = self._state.admit(sequence), None
        if sequence.pooling is not None:
            problem = self._pooler.admit(sequence)
        elif runs:
            try:
                self._sampler.admit(sequence)
            except torch.OutOfMemoryError as error:
                # Penalties and biases take memory as they come. What the slot has of them is its next sequence's.
                logger.warning("out of memory for a sequence's penalties or biases: %s", str(error))
                self._state.fail(SequenceError(sequence.wire_id, OUT_OF_MEMORY))
                return
            problem = self._constraints.admit(sequence)
        if problem is not None:
            self._state.fail(SequenceError(sequence.wire_id, problem, is_request_at_fault=True))

    def _finish_pooled(
        self, pooled: Pooled, vectors: NDArray[np.float32]
    ) -> tuple[tuple[PooledSequence, ...], list[int]]:
        """The embeddings, and the wire ids of those whose vectors were no numbers. `vectors`: of `pooled`, on the
        host."""
        finished, without_numbers = [], []
        for wire_id, params, count, vector in zip(
            pooled.wire_ids.tolist(), pooled.params, pooled.counts.tolist(), vectors, strict=True
        ):
            if np.isfinite(vector).all():
                finished.append(PooledSequence(wire_id, self._pooler.finish(vector, count, params)))
            else:
                without_numbers.append(wire_id)
        return tuple(finished), without_numbers

    def _run_what_fits(self, batch: Batch) -> tuple[Batch, Computed]:
        """The batch that was run at last, and what it brings."""
        while True:
            try:
                return batch, self._run(batch)
            except torch.OutOfMemoryError as error:
                # As text: whoever kept the error would keep the failed attempt's tensors with it.
                logger.warning("out of memory in a step of %d sequences: %s", len(batch.slots), str(error))
            # Not while the error is being handled: it keeps the failed attempt's tensors alive.
            batch = self._state.leave_out_newest(batch, OUT_OF_MEMORY)

    def _run(self, batch: Batch) -> Computed:
        if not len(batch.slots):
            return NOTHING
        pooled_tokens = self._pooler.tokens(batch)
        wanted = np.concatenate((batch.tokens_with_logits, pooled_tokens))
        hidden = self._forward.run(batch, self._state.block_tables, self._sampler.last_tokens, wanted)
        num_sampled, num_with_logits = len(batch.sampled_rows), len(batch.tokens_with_logits)
        prompt, pooled, sample = None, None, None
        if batch.prompt is not None:
            of_prompts = hidden[num_sampled:num_with_logits]
            prompt = compute_prompt_logprobs(of_prompts, self._logits, self.limits.vocab_size, batch.prompt.following)
        if len(pooled_tokens):
            pooled = self._pooler.pool(hidden[num_with_logits:], batch)
        # The sampler last: what it draws changes its state, and nothing may fail after that.
        if num_sampled:
            slots = batch.slots[batch.sampled_rows]
            logits = self._logits(hidden[:num_sampled])
            sample = self._sampler.sample(logits, slots, batch.sampled_positions, self._mask(slots))
        # Nothing is allocated any more, so the step will not be repeated.
        if pooled is not None:
            self._pooler.keep(pooled)
        return Computed(sample, prompt, pooled)

    def _logits(self, hidden: Tensor) -> Tensor:
        """[n, hidden] -> [n, vocab], of a model that generates."""
        assert self._decoder is not None
        return self._decoder.logits(hidden)

    def _mask(self, slots: I64) -> TokenMask | None:
        """Of the rows that sample. The forward pass is under way meanwhile: this waits for the tokens of the steps
        before it, and only where some row may be constrained."""
        if not self._constraints.need_tokens(slots):
            return None
        while self._unobserved:
            self._observe(*self._unobserved.popleft())
        return self._constraints.mask(slots, self.ops.device)

    def _observe(self, batch: Batch, download: Download) -> None:
        """Waits for a step's tokens and shows them to the constraints. Steps are observed in launch order."""
        tokens, valid = (tensor.numpy() for tensor in download.wait()[:2])
        drawn_by = batch.sampled_rows[valid]
        for slot, wire_id, token_id in zip(
            batch.slots[drawn_by].tolist(), batch.wire_ids[drawn_by].tolist(), tokens[valid].tolist(), strict=True
        ):
            self._constraints.observe(slot, wire_id, token_id)


def _indices(column: U32) -> I64:
    return column.astype(np.int64)


def _microseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e6))
