"""Forward passes turn a step's inputs into hidden states. This module has their interface and the two that run on any
device, one for decoders and one for encoders. These two build new input tensors in each step.

A forward pass depends on tokens, pages and the model. It does not depend on what the hidden states are used for:
sampling, log probabilities or pooling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from services.worker.models import Decoder, Encoder, EncoderStep
from services.worker.ops import AttentionBatch, KVPages, Ops, WholeSequences
from services.worker.plan import I32, I64, Batch
from services.worker.step.clock import StepClock
from services.worker.step.embeddings import upload_embeddings
from services.worker.step.graphs import Recorder
from services.worker.transfers import upload


class ForwardPass(Protocol):
    """Runs batches in the order of the calls, on the device's current stream. Never waits for a batch to end."""

    buckets: list[int]  # ascending: numbers of tokens for which graphs of decode-only steps can be recorded

    def reset(self) -> None:
        """Forgets all sequences, for example because another scheduler claims the worker."""
        ...

    def record(self, recorder: Recorder, buckets: Sequence[int], last_tokens: Tensor) -> None:
        """Records a graph for each of the given `buckets`. Call it only while no scheduler owns the worker."""
        ...

    def run(self, batch: Batch, block_tables: I32, last_tokens: Tensor, wanted: I64) -> Tensor:
        """Computes the batch. Returns hidden states [n, hidden] of the tokens `wanted`, which are valid until the next
        run. If a run raises an error, the caller can run the same batch again.

        wanted [n]: distinct indices into the batch's tokens. block_tables [max_num_seqs, max_blocks_per_sequence]: the
        block tables of all slots, on the host. last_tokens int64 [max_num_seqs]: the last token sampled for each slot,
        on the device; every call must pass the same tensor.
        """
        ...


class PlainForwardPass:
    def __init__(self, decoder: Decoder, ops: Ops, pages: Sequence[KVPages], clock: StepClock) -> None:
        self.buckets: list[int] = []
        self._clock = clock
        self._decoder, self._ops, self._pages = decoder, ops, pages

    def reset(self) -> None:
        """Does nothing, because no state is kept between steps."""

    def record(self, recorder: Recorder, buckets: Sequence[int], last_tokens: Tensor) -> None:
        """Does nothing, because there are no buckets."""

    def run(self, batch: Batch, block_tables: I32, last_tokens: Tensor, wanted: I64) -> Tensor:
        """See `ForwardPass`."""
        device = self._ops.device
        token_ids = torch.from_numpy(batch.token_ids).to(device)
        if len(batch.last_token_at):
            at, whose = torch.from_numpy(batch.last_token_at), torch.from_numpy(batch.last_token_slots)
            token_ids[at.to(device)] = last_tokens[whose.to(device)]
        work = self._ops.plan_attention(batch.query_starts, batch.positions)
        tables = np.ascontiguousarray(block_tables[batch.slots, : batch.num_blocks.max(initial=1)])
        where = AttentionBatch(
            positions=torch.from_numpy(batch.positions).to(device),
            query_starts=torch.from_numpy(batch.query_starts).to(device),
            block_tables=torch.from_numpy(tables).to(device),
            work=None if work is None else work.to(device),
        )
        at = torch.from_numpy(wanted).to(device)
        given = batch.embeddings
        embeddings = None if given is None else upload_embeddings(given, given.at, self._ops)
        self._clock.begin()
        return self._decoder.hidden_states(token_ids, where, self._pages, at, embeddings)


class EncoderForwardPass:
    """Runs an encoder over whole sequences. It has no pages and keeps no state between steps."""

    def __init__(self, encoder: Encoder, device: torch.device, clock: StepClock) -> None:
        self.buckets: list[int] = []
        self._clock = clock
        self._encoder, self._device = encoder, device

    def reset(self) -> None:
        """Does nothing, because no state is kept between steps."""

    def record(self, recorder: Recorder, buckets: Sequence[int], last_tokens: Tensor) -> None:
        """Does nothing, because there are no buckets."""

    def run(self, batch: Batch, block_tables: I32, last_tokens: Tensor, wanted: I64) -> Tensor:
        """See `ForwardPass`. Every row is a whole sequence."""
        lengths = np.diff(batch.query_starts)
        whole = WholeSequences(
            positions=upload(batch.positions, self._device),
            query_starts=upload(batch.query_starts, self._device),
            lengths=tuple(lengths.tolist()),
        )
        token_types = (batch.positions >= np.repeat(batch.second_text_at, lengths)).astype(np.int64)
        self._clock.begin()
        token_ids = upload(batch.token_ids, self._device)
        step = EncoderStep(token_ids, upload(token_types, self._device), whole)
        hidden = self._encoder.network.hidden_states(step)
        return hidden[upload(wanted, self._device)]
