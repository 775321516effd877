"""Sampling in a step: turns the hidden states of the forward pass into tokens and log probabilities.

The batch says which rows sample, so this module does not depend on plans, blocks or pages. Only `sampling/`
interprets individual sampling parameters.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import torch
from torch import Tensor

from services.worker.errors import PlanError
from services.worker.models import Decoder
from services.worker.plan import I64, Batch, GeneratingSequence, Limits, SequenceError
from services.worker.sampling import (
    Grammars,
    PromptLogprobTensors,
    Sample,
    Sampler,
    SlotConstraints,
    TokenMask,
    compute_prompt_logprobs,
)
from services.worker.transfers import Download


class Generation(Protocol):
    """Samples tokens for the sequences in slots. Not thread-safe: only the step thread calls it."""

    last_tokens: Tensor  # int64 [max_num_seqs] on the device: the last token sampled for each slot

    def reset(self) -> None:
        """Forgets all sequences, for example because another scheduler claims the worker."""
        ...

    def admit(self, sequence: GeneratingSequence) -> str | None:
        """Assigns the slot `sequence.slot` to the sequence from the next step on. Returns None, or a sentence for the
        client that says why the sequence cannot run. If the method raises torch.OutOfMemoryError, the slot can still
        be assigned to another sequence later."""
        ...

    def release(self, slot: int) -> None:
        """Frees the slot of a sequence."""
        ...

    def prompt_logprobs(self, hidden: Tensor, batch: Batch) -> PromptLogprobTensors | None:
        """Returns the log probabilities of prompt tokens; None if no sequence of the batch wants any. hidden
        [n, hidden]: for each of these prompt tokens, the hidden state of the token before it."""
        ...

    def sample(self, hidden: Tensor, batch: Batch) -> Sample | None:
        """Samples a token for each of the n rows of the batch that sample; returns None if n is 0. hidden [n, hidden].
        Sampling changes the state of the slots, so call it last in a step, after everything that can fail."""
        ...

    def launched(self, batch: Batch, sample: Sample | None, download: Download) -> None:
        """Notes that the copy of a step's tokens to the host has started."""
        ...

    def collected(self, download: Download) -> None:
        """Notes that a step's tokens have arrived on the host. Steps are collected in launch order."""
        ...

    def failure(self, slot: int, wire_id: int) -> SequenceError | None:
        """Returns why the slot's sequence can sample no further token; None if it can."""
        ...


class DecoderGeneration:
    """See `Generation`."""

    def __init__(
        self, decoder: Decoder, sampler: Sampler, limits: Limits, device: torch.device, grammars: Grammars | None
    ) -> None:
        """`grammars`: compiles grammars for the model's tokenizer; None: `admit` refuses sequences with a grammar."""
        self._decoder, self._limits, self._device, self._grammars = decoder, limits, device, grammars
        # The sampler is kept across epochs, because recorded graphs read `last_tokens` at a fixed address. Admitting a
        # sequence overwrites all state that the slot's previous sequence left in the sampler.
        self._sampler = sampler
        self.last_tokens = sampler.last_tokens
        self.reset()

    def reset(self) -> None:
        """See `Generation`."""
        limits = self._limits
        self._constraints = SlotConstraints(limits.max_num_seqs, limits.vocab_size, self._grammars)
        # Steps whose tokens the constraints have not processed yet, oldest first.
        self._unobserved: deque[tuple[Batch, Download]] = deque()

    def admit(self, sequence: GeneratingSequence) -> str | None:
        """See `Generation`. Can raise torch.OutOfMemoryError, because the sampler might have to allocate memory for the
        sequence's penalties and biases."""
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

    def failure(self, slot: int, wire_id: int) -> SequenceError | None:
        """See `Generation`."""
        return self._constraints.failure(slot, wire_id)

    def _mask(self, slots: I64) -> TokenMask | None:
        """Returns the mask of allowed tokens for the rows that sample; None if no row needs one. If a row might need a
        mask, first waits for the tokens of earlier steps, while the device runs the forward pass of this step."""
        if not self._constraints.need_tokens(slots):
            return None
        while self._unobserved:
            self._observe(*self._unobserved.popleft())
        return self._constraints.mask(slots, self._device)

    def _observe(self, batch: Batch, download: Download) -> None:
        """Waits for a step's tokens and passes them to the constraints. Call it in launch order."""
        tokens, valid = (tensor.numpy() for tensor in download.wait()[:2])
        drawn_by = batch.sampled_rows[valid]
        for slot, wire_id, token_id in zip(
            batch.slots[drawn_by].tolist(), batch.wire_ids[drawn_by].tolist(), tokens[valid].tolist(), strict=True
        ):
            self._constraints.observe(slot, wire_id, token_id)


class NoGeneration:
    """See `Generation`. For an encoder, which only pools sequences and samples no tokens."""

    def __init__(self, device: torch.device) -> None:
        self.last_tokens = torch.zeros(0, dtype=torch.int64, device=device)

    def reset(self) -> None:
        """See `Generation`."""

    def admit(self, sequence: GeneratingSequence) -> str | None:
        """See `Generation`. Raises PlanError. Never called in practice, because `BatchState` already refuses sequences
        that generate."""
        raise PlanError(f"sequence {sequence.wire_id} asks to generate, but the model is an encoder")

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

    def failure(self, slot: int, wire_id: int) -> SequenceError | None:
        """See `Generation`."""
        return None
