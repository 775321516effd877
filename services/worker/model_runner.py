"""Runs steps: applies a plan to the batch, launches forward pass and sampling, and later collects what was drawn.

`launch` never waits for the device: everything it lays out is known on the host, and the one thing that is not, the
token each sequence drew last, is read on the device from where the step before left it. So a plan may be launched while
the results of those before it are not collected yet. All of a worker's steps run in launch order on one compute stream.
Pages that a plan gives to another owner are safe only because of that order: what still reads them was launched before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.worker.batch_state import Batch, BatchState, Limits
from services.worker.kv_cache import HostPages
from services.worker.models.decoder import Decoder
from services.worker.ops.interface import AttentionBatch, KVPages, Ops
from services.worker.plan import U32, Logprobs, SequenceError, StepPlan, StepResult
from services.worker.sampling.logprobs import LogprobTensors
from services.worker.sampling.sampler import Sample, create_sampler
from services.worker.tracing import SequenceSpans

NO_NUMBERS = "The model computed something that is not a number for this sequence."
STEP_FAILED = "The worker failed to compute a step of this sequence."


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """Work under way on the device."""

    plan: StepPlan
    batch: Batch
    sample: Sample | None  # None: nothing was sampled
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
        host_pages: HostPages | None = None,
    ) -> None:
        self.limits = limits
        self.ops = ops
        self._decoder = decoder
        self._pages = pages
        self._host_pages = host_pages or HostPages(pages, 0)
        self.reset()

    @property
    def synchronous(self) -> bool:
        """Whether `launch` returns only once the work is done, so that nothing is gained by collecting later."""
        return self.ops.device.type == "cpu"

    def reset(self) -> None:
        """A new epoch: no sequences, all pages free. Weights stay."""
        self._state = BatchState(self.limits)
        self._sampler = create_sampler(self.ops, self.limits.max_num_seqs, self.limits.vocab_size)
        self._spans = SequenceSpans()

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
        """
        self._state.check_copies(plan)
        if len(plan.swap_out_blocks):
            self._host_pages.save(_indices(plan.swap_out_blocks), _indices(plan.swap_out_slots))
        for slot in self._state.release(plan):
            self._spans.end(slot)
        if len(plan.swap_in_slots):
            self._host_pages.load(_indices(plan.swap_in_slots), _indices(plan.swap_in_blocks))
        if len(plan.copy_sources):
            self._copy_blocks(_indices(plan.copy_sources), _indices(plan.copy_destinations))
        for sequence in plan.new_sequences:
            if self._state.admit(sequence):
                self._sampler.admit(sequence)
            self._spans.start(sequence)
        started_at = time.monotonic()
        batch = self._state.schedule(plan.rows)
        sample, error = None, None
        try:
            sample = self._compute(batch)
        except Exception as raised:
            error = raised
            for wire_id in batch.wire_ids.tolist():
                self._state.fail(wire_id, STEP_FAILED)
        return LaunchedStep(plan, batch, sample, error, received_at, started_at)

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
        if sample is not None:
            valid = sample.valid.cpu().numpy()
            drawn_by = batch.wire_ids[batch.sampled_rows]
            for wire_id in drawn_by[~valid].tolist():
                self._state.fail(wire_id, NO_NUMBERS)
                errors.append((wire_id, NO_NUMBERS))
            wire_ids = drawn_by[valid].astype(np.uint32)
            token_ids = sample.tokens.cpu().numpy()[valid].astype(np.uint32)
            self._spans.count(batch.slots[batch.sampled_rows][valid])
            if sample.logprobs is not None:
                logprobs = _collect_logprobs(sample.logprobs, valid)
        finished_at = time.monotonic()
        return StepResult(
            step_id=step.plan.step_id,
            wire_ids=wire_ids,
            token_ids=token_ids,
            logprobs=logprobs,
            errors=tuple(SequenceError(wire_id, message) for wire_id, message in errors),
            num_scheduled_tokens=len(batch.token_ids),
            queue_us=_microseconds(step.started_at - step.received_at),
            run_us=_microseconds(finished_at - step.started_at) if len(batch.wire_ids) else 0,
        )

    def _copy_blocks(self, sources: Tensor, destinations: Tensor) -> None:
        sources, destinations = sources.to(self.ops.device), destinations.to(self.ops.device)
        for pages in self._pages:
            pages.copy_blocks(sources, destinations)

    def _compute(self, batch: Batch) -> Sample | None:
        if not len(batch.slots):
            return None
        device = self.ops.device
        token_ids = torch.from_numpy(batch.token_ids).to(device)
        if len(batch.last_token_at):
            at, whose = torch.from_numpy(batch.last_token_at), torch.from_numpy(batch.last_token_slots)
            token_ids[at.to(device)] = self._sampler.last_tokens[whose.to(device)]
        work = self.ops.plan_attention(batch.query_starts, batch.positions)
        where = AttentionBatch(
            positions=torch.from_numpy(batch.positions).to(device),
            query_starts=torch.from_numpy(batch.query_starts).to(device),
            block_tables=torch.from_numpy(batch.block_tables).to(device),
            work=None if work is None else work.to(device),
        )
        sampled = torch.from_numpy(batch.sampled_tokens).to(device)
        logits = self._decoder.forward(token_ids, where, self._pages, sampled)
        if not len(batch.sampled_rows):
            return None
        slots = batch.slots[batch.sampled_rows]
        return self._sampler.sample(logits, slots, batch.sampled_positions)


def _collect_logprobs(tensors: LogprobTensors, valid: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Logprobs | None:
    """Of those rows whose token counts: `valid` [n] over the rows of the sample."""
    keep = np.flatnonzero(valid[tensors.rows])
    if not len(keep):
        return None
    index_of = np.cumsum(valid) - 1  # a row's index among the valid ones
    counts = tensors.top_counts[keep]
    within = np.arange(tensors.top_token_ids.shape[1])[None, :] < counts[:, None]
    return Logprobs(
        token_indices=index_of[tensors.rows[keep]].astype(np.uint32),
        logprobs=tensors.logprobs.cpu().numpy()[keep],
        top_counts=counts.astype(np.uint32),
        top_token_ids=tensors.top_token_ids.cpu().numpy()[keep][within].astype(np.uint32),
        top_logprobs=tensors.top_logprobs.cpu().numpy()[keep][within],
    )


def _indices(column: U32) -> Tensor:
    return torch.from_numpy(column.astype(np.int64))


def _microseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e6))
