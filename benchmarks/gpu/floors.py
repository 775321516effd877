"""Shortest possible times of a decode step and of a prompt, according to the device's ceilings."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.gpu.roofline import Ceilings
from services.worker.models.config import ModelConfig
from services.worker.models.size import kv_bytes_per_token, num_parameters, weight_bytes
from services.worker.quantization.at_load import AtLoad

# Formats whose products run on 8-bit matrix units, by --quantization's or the checkpoint's name.
_RATES = {"fp8": "fp8", "int8": "int8"}


@dataclass(frozen=True, slots=True)
class Floors:
    """Shortest possible times in seconds. A step reads every weight once, except the embeddings, of which it reads a
    row per token. It reads each attended key and value once."""

    model: ModelConfig
    ceilings: Ceilings
    dtype: torch.dtype
    kv_dtype: torch.dtype
    at_load: AtLoad | None

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a step reads."""
        model, item = self.model, self.dtype.itemsize
        unread = 0 if model.network.tie_word_embeddings else model.vocab_size * model.hidden_size * item
        return weight_bytes(model, item, self.at_load) - unread

    def kv_bytes(self, num_tokens: float) -> float:
        return num_tokens * kv_bytes_per_token(self.model, self.kv_dtype.itemsize)

    def decode(self, batch: int, context: float) -> float:
        """Returns the time of a step of `batch` sequences that attend to `context` tokens each."""
        return (self.weight_bytes + self.kv_bytes(batch * context)) / self.ceilings.read

    def prefill(self, num_tokens: int) -> float:
        """Returns the time of a prompt up to the logits of its last token: the FLOP of the layers' products divided by
        the rate of the weights' type, plus those of causal attention divided by bf16's rate. Attention takes 4 · heads
        · head size FLOP for each of n (n + 1) / 2 pairs."""
        model, rates = self.model, self.ceilings.rates
        embeddings = model.vocab_size * model.hidden_size
        layers = num_parameters(model) - embeddings * (1 if model.network.tie_word_embeddings else 2)
        pairs = num_tokens * (num_tokens + 1) / 2
        attention = sum(2 * heads.num_heads * (heads.key_dim + heads.value_dim) for heads in model.attention) * pairs
        products = 2 * layers * num_tokens
        rate = rates.get(self._matrix_type, rates["bf16"])
        return products / rate + (attention + 2 * embeddings) / rates["bf16"]

    @property
    def _matrix_type(self) -> str:
        checkpoint = self.model.quantization
        method = self.at_load.name if self.at_load else checkpoint.method if checkpoint else ""
        return _RATES.get(method, "bf16")
