"""What a step does for sequences that generate, once the forward pass has their hidden states.

The batch says which rows draw, so nothing here knows of plans, blocks or pages. What a single sampling parameter means
is known in `sampling/` alone.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import torch
from torch import Tensor

from services.worker.errors import PlanError
from services.worker.models import Decoder
from services.worker.ops import Download
from services.worker.plan import I64, Batch, GeneratingSequence, Limits
from services.worker.sampling import (
    Grammars,
    PromptLogprobTensors,
    Sample,
    Sampler,
    SlotConstraints,
    TokenMask,
    compute_prompt_logprobs,
)


class Generation(Protocol):
    """Not thread-safe: one step thread owns it."""

    last_tokens: Tensor  # int64 [max_num_seqs] on the device: what each slot drew last

    def reset(self) -> None:
        """A new epoch: nothing of the last one's sequences counts."""
        ...

    def admit(self, sequence: GeneratingSequence) -> str | None:
        """The slot is the sequence's from the next step on. Returns why it cannot run, a sentence for its client, or
        None. Raises torch.OutOfMemoryError; what the slot has then is its next sequence's."""
        ...

    def release(self, slot: int) -> None:
        """The slot's sequence is gone."""
        ...

    def prompt_logprobs(self, hidden: Tensor, batch: Batch) -> PromptLogprobTensors | None:
        """Of the batch's prompt tokens, hidden [n, hidden]; None if none is wanted."""
        ...

    def sample(self, hidden: Tensor, batch: Batch) -> Sample | None:
        """A token for each row that samples, hidden [n, hidden]; None if none does. What it draws changes the slots'
        state: nothing may fail after it."""
        ...

    def launched(self, batch: Batch, sample: Sample | None, download: Download) -> None:
        """A step's tokens are on their way to the host."""
        ...

    def collected(self, download: Download) -> None:
        """A step's tokens are there. Steps are collected in launch order."""
        ...

    def failure(self, slot: int, wire_id: int) -> str:
        """Why the sequence in the slot can draw no token any more; empty if it can."""
        ...


class DecoderGeneration:
    """See `Generation`."""

    def __init__(
        self, decoder: Decoder, sampler: Sampler, limits: Limits, device: torch.device, grammars: Grammars | None
    ) -> None:
        """`grammars`: of the model's tokenizer, for sequences that want one."""
        self._decoder, self._limits, self._device, self._grammars = decoder, limits, device, grammars
        # The same from epoch to epoch: recorded launches read what it drew last where they did when recorded, and a
        # slot's next sequence finds nothing of the one before.
        self._sampler = sampler
        self.last_tokens = sampler.last_tokens
        self.reset()

    def reset(self) -> None:
        """See `Generation`."""
        limits = self._limits
        self._constraints = SlotConstraints(limits.max_num_seqs, limits.vocab_size, self._grammars)
        # Steps whose tokens the constraints have not seen yet, oldest first.
        self._unobserved: deque[tuple[Batch, Download]] = deque()

    def admit(self, sequence: GeneratingSequence) -> str | None:
        """See `Generation`. Penalties and biases take memory as they come."""
        self._sampler.admit(sequence)
        return self._constraints.admit(sequence)

    def release(self, slot: int) -> None:
        """See `Generation`."""
        self._constraints.release(slot)

    def prompt_logprobs(self, hidden: Tensor, batch: Batch) -> PromptLogprobTensors | None:
        """See `Generation`."""
        if batch.prompt is None:
            return None
        return compute_prompt_logprobs(hidden, self._decoder.logits, self._limits.vocab_size, batch.prompt.following)

    def sample(self, hidden: Tensor, batch: Batch) -> Sample | None:
        """See `Generation`."""
        if not len(batch.sampled_rows):
            return None
        slots = batch.slots[batch.sampled_rows]
        logits = self._decoder.logits(hidden)
        return self._sampler.sample(logits, slots, batch.sampled_positions, self._mask(slots))

    def launched(self, batch: Batch, sample: Sample | None, download: Download) -> None:
        """See `Generation`."""
        drawn_for = batch.slots[batch.sampled_rows]
        if sample is not None and self._constraints.watched[drawn_for].any():
            self._constraints.draw(drawn_for)
            self._unobserved.append((batch, download))

    def collected(self, download: Download) -> None:
        """See `Generation`."""
        if self._unobserved and self._unobserved[0][1] is download:
            self._observe(*self._unobserved.popleft())

    def failure(self, slot: int, wire_id: int) -> str:
        """See `Generation`."""
        return self._constraints.failure(slot, wire_id)

    def _mask(self, slots: I64) -> TokenMask | None:
        """Of the rows that sample. The forward pass is under way meanwhile: this waits for the tokens of the steps
        before it, and only where some row may be constrained."""
        if not self._constraints.need_tokens(slots):
            return None
        while self._unobserved:
            self._observe(*self._unobserved.popleft())
        return self._constraints.mask(slots, self._device)

    def _observe(self, batch: Batch, download: Download) -> None:
        """Waits for a step's tokens and shows them to the constraints. Steps are observed in launch order."""
        tokens, valid = (tensor.numpy() for tensor in download.wait()[:2])
        drawn_by = batch.sampled_rows[valid]
        for slot, wire_id, token_id in zip(
            batch.slots[drawn_by].tolist(), batch.wire_ids[drawn_by].tolist(), tokens[valid].tolist(), strict=True
        ):
            self._constraints.observe(slot, wire_id, token_id)


class NoGeneration:
    """See `Generation`. An encoder's, whose sequences are all pooled: none draws a token."""

    def __init__(self, device: torch.device) -> None:
        self.last_tokens = torch.zeros(0, dtype=torch.int64, device=device)

    def reset(self) -> None:
        """See `Generation`."""

    def admit(self, sequence: GeneratingSequence) -> str | None:
        """See `Generation`. The batch's state refuses such a sequence before."""
        raise PlanError(f"sequence {sequence.wire_id} is to generate, but the model is an encoder")

    def release(self, slot: int) -> None:
        """See `Generation`."""

    def prompt_logprobs(self, hidden: Tensor, batch: Batch) -> None:
        """See `Generation`."""

    def sample(self, hidden: Tensor, batch: Batch) -> None:
        """See `Generation`."""

    def launched(self, batch: Batch, sample: Sample | None, download: Download) -> None:
        """See `Generation`."""

    def collected(self, download: Download) -> None:
        """See `Generation`."""

    def failure(self, slot: int, wire_id: int) -> str:
        """See `Generation`."""
        return ""
