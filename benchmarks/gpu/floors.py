"""What the device's ceilings allow for a model: the least time of a decode step, and of a prompt."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.gpu.ceilings import Ceilings
from services.worker.architectures.config import ModelConfig
from services.worker.architectures.size import kv_bytes_per_token, num_parameters, weight_bytes
from services.worker.quantization.at_load import AtLoad

# Forms whose products run on narrower matrix units, by what --quantization or a checkpoint calls them.
_RATES = {"fp8": "fp8", "int8": "int8"}


@dataclass(frozen=True, slots=True)
class Floors:
    """Seconds. Every weight is read once per step but the embeddings, of which a step takes a row per token; every key
    and value that is attended to is read once."""

    model: ModelConfig
    ceilings: Ceilings
    dtype: torch.dtype
    kv_dtype: torch.dtype
    at_load: AtLoad | None

    @property
    def weight_bytes(self) -> int:
        """That a step reads."""
        model, item = self.model, self.dtype.itemsize
        unread = 0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size * item
        return weight_bytes(model, item, self.at_load) - unread

    def kv_bytes(self, num_tokens: float) -> float:
        return num_tokens * kv_bytes_per_token(self.model, self.kv_dtype.itemsize)

    def decode(self, batch: int, context: float) -> float:
        """A step of `batch` sequences that attend to `context` tokens each."""
        return (self.weight_bytes + self.kv_bytes(batch * context)) / self.ceilings.read

    def prefill(self, num_tokens: int) -> float:
        """A prompt from its first token to the logits of its last: FLOP of the layers' products over the rate of the
        weights' type, and of causal attention, 4 · heads · head size for each of n (n + 1) / 2 pairs, over bf16's."""
        model, rates = self.model, self.ceilings.rates
        embeddings = model.vocab_size * model.hidden_size
        layers = num_parameters(model) - embeddings * (1 if model.tie_word_embeddings else 2)
        pairs = num_tokens * (num_tokens + 1) / 2
        attention = 4 * model.num_heads * model.head_dim * len(model.layers) * pairs
        products = 2 * layers * num_tokens
        rate = rates.get(self._matrix_type, rates["bf16"])
        return products / rate + (attention + 2 * embeddings) / rates["bf16"]

    @property
    def _matrix_type(self) -> str:
        checkpoint = self.model.quantization
        method = self.at_load.name if self.at_load else checkpoint.method if checkpoint else ""
        return _RATES.get(method, "bf16")
