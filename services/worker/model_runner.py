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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.batch_state import I64, Batch, BatchState, Limits
from services.worker.forward_pass import create_forward_pass
from services.worker.graphs import Recorder
from services.worker.models.decoder import Decoder
from services.worker.ops.download import Download
from services.worker.ops.interface import KVPages, Ops
from services.worker.page_copies import PageCopies, create_page_copies
from services.worker.plan import U32, Logprobs, PromptLogprobs, SequenceError, StepPlan, StepResult
from services.worker.sampling.constraints import SlotConstraints
from services.worker.sampling.grammars import Grammars
from services.worker.sampling.logprobs import LogprobTensors
from services.worker.sampling.prompt_logprobs import PromptLogprobTensors, PromptTokens, prompt_logprobs
from services.worker.sampling.sampler import Sample, create_sampler
from services.worker.sampling.token_mask import TokenMask
from services.worker.tracing import SequenceSpans

logger = logging.getLogger(__name__)

NO_NUMBERS = "The model computed something that is not a number for this sequence."
STEP_FAILED = "The worker failed to compute a step of this sequence."
OUT_OF_MEMORY = "The worker ran out of memory in a step, and this was its newest sequence."


@dataclass(frozen=True, slots=True)
class Computed:
    """What a step brings, on the device."""

    sample: Sample | None  # None: nothing was sampled
    prompt: PromptLogprobTensors | None

    def tensors(self) -> list[Tensor]:
        """The sample's, then the prompt's."""
        parts = [part.tensors() for part in (self.sample, self.prompt) if part is not None]
        return [tensor for part in parts for tensor in part]


NOTHING = Computed(None, None)


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


class ModelRunner:
    """Weights, pages and slots of one worker. Not thread-safe: one step thread owns it."""

    def __init__(
        self,
        decoder: Decoder,
        ops: Ops,
        pages: Sequence[KVPages],
        limits: Limits,
        copies: PageCopies | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """`grammars`: of the model's tokenizer, for sequences that want one."""
        self.limits = limits
        self.ops = ops
        self._logits = decoder.logits
        self._forward = create_forward_pass(decoder, ops, pages, limits)
        # The same from epoch to epoch: recorded launches read what it drew last where they did when recorded, and a
        # slot's next sequence finds nothing of the one before.
        self._sampler = create_sampler(ops, limits.max_num_seqs, limits.vocab_size)
        self._copies = copies or create_page_copies(ops, pages, limits.num_host_blocks)
        self._grammars = grammars
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
        if len(plan.swap_out_blocks):
            self._copies.save(_indices(plan.swap_out_blocks), _indices(plan.swap_out_slots))
        for slot in self._state.release(plan):
            self._spans.end(slot)
            self._constraints.release(slot)
        if len(plan.swap_in_slots):
            self._copies.load(_indices(plan.swap_in_slots), _indices(plan.swap_in_blocks))
        if len(plan.copy_sources):
            self._copies.copy(_indices(plan.copy_sources), _indices(plan.copy_destinations))
        for sequence in plan.new_sequences:
            if self._state.admit(sequence):
                self._sampler.admit(sequence)
                problem = self._constraints.admit(sequence)
                if problem is not None:
                    self._state.fail(sequence.wire_id, problem)
            self._spans.start(sequence)
        started_at = time.monotonic()
        batch = self._state.schedule(plan.rows)
        computed, download, error = NOTHING, None, None
        try:
            batch, computed = self._run_what_fits(batch)
            download = Download(computed.tensors(), self.ops.device)
            if computed.sample is not None and self._constraints.active[batch.slots[batch.sampled_rows]].any():
                self._unobserved.append((batch, download))
        except Exception as raised:
            error = raised
            for wire_id in batch.wire_ids.tolist():
                self._state.fail(wire_id, STEP_FAILED)
        return LaunchedStep(plan, batch, computed, download, error, received_at, started_at)

    def finished(self, step: LaunchedStep) -> bool:
        """Whether `collect` would not wait."""
        return step.download is None or step.download.arrived()

    @torch.inference_mode()
    def collect(self, step: LaunchedStep) -> StepResult:
        """Waits for the device and brings the results to the host."""
        batch, sample = step.batch, step.computed.sample
        errors = list(batch.failed)
        if step.error is not None:
            errors += [(wire_id, STEP_FAILED) for wire_id in batch.wire_ids.tolist()]
        wire_ids = np.zeros(0, np.uint32)
        token_ids = np.zeros(0, np.uint32)
        logprobs = None
        arrived = [] if step.download is None else [tensor.numpy() for tensor in step.download.wait()]
        of_prompts = None
        invalid: dict[int, str] = {}  # sequences whose results are none, and why
        num_columns = 0 if sample is None else len(sample.tensors())
        if step.error is None and step.computed.prompt is not None:
            assert batch.prompt is not None
            of_prompts, without_numbers = _collect_prompt_logprobs(batch.prompt, arrived[num_columns:])
            invalid |= dict.fromkeys(without_numbers, NO_NUMBERS)
        if step.error is None and sample is not None:
            tokens, valid, *logprob_arrays = arrived[:num_columns]
            drawn_by, slots = batch.wire_ids[batch.sampled_rows], batch.slots[batch.sampled_rows]
            for slot, wire_id in zip(slots[~valid].tolist(), drawn_by[~valid].tolist(), strict=True):
                invalid.setdefault(wire_id, self._constraints.failure(slot, wire_id) or NO_NUMBERS)
            valid = valid & ~np.isin(drawn_by, list(invalid))
            wire_ids = drawn_by[valid].astype(np.uint32)
            token_ids = tokens[valid].astype(np.uint32)
            self._spans.count(slots[valid])
            if sample.logprobs is not None:
                logprobs = _collect_logprobs(sample.logprobs, logprob_arrays, valid)
        for wire_id, reason in invalid.items():
            self._state.fail(wire_id, reason)
            errors.append((wire_id, reason))
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
            errors=tuple(SequenceError(wire_id, message) for wire_id, message in errors),
            num_scheduled_tokens=len(batch.token_ids),
            queue_us=_microseconds(started_at - step.received_at),
            run_us=_microseconds(finished_at - started_at) if len(batch.wire_ids) else 0,
        )

    def _run_what_fits(self, batch: Batch) -> tuple[Batch, Computed]:
        """The batch that was run at last, and what it brings."""
        while True:
            try:
                return batch, self._run(batch)
            except torch.OutOfMemoryError as error:
                logger.warning("out of memory in a step of %d sequences: %s", len(batch.slots), error)
            # Not while the error is being handled: it keeps the failed attempt's tensors alive.
            batch = self._state.leave_out_newest(batch, OUT_OF_MEMORY)

    def _run(self, batch: Batch) -> Computed:
        if not len(batch.slots):
            return NOTHING
        hidden = self._forward.run(batch, self._state.block_tables, self._sampler.last_tokens)
        if hidden is None:
            return NOTHING
        num_sampled, prompt, sample = len(batch.sampled_rows), None, None
        # The sampler last: what it draws changes its state, and nothing may fail after that.
        if batch.prompt is not None:
            following = batch.prompt.following
            prompt = prompt_logprobs(hidden[num_sampled:], self._logits, self.limits.vocab_size, following)
        if num_sampled:
            slots = batch.slots[batch.sampled_rows]
            logits = self._logits(hidden[:num_sampled])
            sample = self._sampler.sample(logits, slots, batch.sampled_positions, self._mask(slots))
        return Computed(sample, prompt)

    def _mask(self, slots: I64) -> TokenMask | None:
        """Of the rows that sample. The forward pass is under way meanwhile: what is waited for here are the tokens of
        the step before it, and only where some row is constrained."""
        if not self._constraints.active[slots].any():
            return None
        while self._unobserved:
            batch, download = self._unobserved.popleft()
            tokens, valid = (tensor.numpy() for tensor in download.wait()[:2])
            drawn_by = batch.sampled_rows[valid]
            for slot, wire_id, token_id in zip(
                batch.slots[drawn_by].tolist(), batch.wire_ids[drawn_by].tolist(), tokens[valid].tolist(), strict=True
            ):
                self._constraints.observe(slot, wire_id, token_id)
        return self._constraints.mask(slots, self.ops.device)


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


def _collect_prompt_logprobs(of: PromptTokens, arrays: Sequence[NDArray[Any]]) -> tuple[PromptLogprobs, list[int]]:
    """Of those sequences whose logits were numbers; and the wire ids of the others. `arrays`: those of
    `PromptLogprobTensors`, on the host."""
    valid, logprobs, ranks, top_token_ids, top_logprobs = arrays
    counts = np.diff(of.offsets)
    fine = np.logical_and.reduceat(valid, of.offsets[:-1])
    entries = np.repeat(fine, counts)
    within = np.arange(top_token_ids.shape[1])[None, :] < np.repeat(of.top_counts, counts)[entries][:, None]
    kept = PromptLogprobs(
        wire_ids=of.wire_ids[fine].astype(np.uint32),
        first_positions=of.first_positions[fine].astype(np.uint32),
        offsets=np.concatenate(([0], np.cumsum(counts[fine]))).astype(np.uint32),
        logprobs=logprobs[entries],
        ranks=ranks[entries].astype(np.uint32),
        top_counts=of.top_counts[fine].astype(np.uint32),
        top_token_ids=top_token_ids[entries][within].astype(np.uint32),
        top_logprobs=top_logprobs[entries][within],
    )
    return kept, of.wire_ids[~fine].tolist()


def _indices(column: U32) -> I64:
    return column.astype(np.int64)


def _microseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e6))
