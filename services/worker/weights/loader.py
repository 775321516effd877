"""Builds a decoder or an encoder with weights from a source."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from services.worker.models import Build, Decoder, Encoder, EncoderConfig, Matrix, ModelConfig, RopeConfig
from services.worker.ops import Activate, Experts, Heads, HeadwiseLinear, Layer, Linear, Ops, Rotation, RunLayers
from services.worker.quantization.kinds import Weight, join
from services.worker.weights.joined_linear import JoinedLinear
from services.worker.weights.source import WeightSource

logger = logging.getLogger(__name__)


def load_decoder(config: ModelConfig, ops: Ops, source: WeightSource, max_positions: int) -> Decoder:
    """Takes all weights from `source`, layer by layer. `max_positions`: tokens in the longest sequence."""
    return Decoder(config, config.create_network(_Loader(_Shared(ops, source, max_positions))))


def load_encoder(config: EncoderConfig, ops: Ops, source: WeightSource, max_positions: int) -> Encoder:
    """Takes all weights from `source`, layer by layer. `max_positions`: see `load_decoder`."""
    return Encoder(config, config.create_network(_Loader(_Shared(ops, source, max_positions))))


class _Shared:
    """What the scopes of one network share."""

    def __init__(self, ops: Ops, source: WeightSource, max_positions: int) -> None:
        self.ops, self.source, self.max_positions = ops, source, max_positions
        self.rotations: dict[tuple[RopeConfig, bool], Rotation] = {}
        self.num_attention_layers = 0


class _Loader:
    """See `Build`. Projections that have the same input are joined into one matrix if their weights have the same
    format."""

    def __init__(self, shared: _Shared, prefix: str = "") -> None:
        self._shared, self._prefix = shared, prefix
        self.ops, self.max_positions, self._source = shared.ops, shared.max_positions, shared.source

    def inside(self, name: str) -> Build:
        return _Loader(self._shared, f"{self._prefix}{name}.")

    def linear(self, *matrices: Matrix) -> Linear:
        weights, biases = [self._weight(matrix) for matrix in matrices], [self._bias(matrix) for matrix in matrices]
        joined = join(weights) if len({matrix.has_bias for matrix in matrices}) == 1 else None
        if joined is None:
            return JoinedLinear(list(map(self.ops.linear, weights, biases)))
        weights.clear()  # frees the parts before the joined matrix is packed
        present = [bias for bias in biases if bias is not None]
        return self.ops.linear(joined, torch.cat(present) if present else None)

    def absorbed(self, matrix: Matrix, num_heads: int, key_dim: int) -> tuple[HeadwiseLinear, HeadwiseLinear]:
        weight = self._weight(matrix)
        floats = weight if isinstance(weight, Tensor) else weight.dequantize().to(self.ops.dtype)
        by_head = floats.reshape(num_heads, -1, matrix.inputs)  # [num_heads, key_dim + value_dim, latent]
        keys, values = by_head[:, :key_dim].transpose(1, 2), by_head[:, key_dim:]
        return self.ops.headwise_linear(keys), self.ops.headwise_linear(values)

    def experts(
        self, gate_up: Sequence[Sequence[Matrix]], down: Sequence[Matrix], activation: Activate, num_chosen: int
    ) -> Experts:
        pairs = [(self.linear(*gu), self.linear(d)) for gu, d in zip(gate_up, down, strict=True)]
        return self.ops.experts([first for first, _ in pairs], [second for _, second in pairs], activation)

    def _weight(self, matrix: Matrix) -> Weight:
        weight = self._source.weight(self._prefix + matrix.layer)
        if matrix.rows is None:
            return weight
        rows = torch.tensor(matrix.rows(), device=self.ops.device)
        return weight[rows] if isinstance(weight, Tensor) else weight.select_rows(rows)

    def _bias(self, matrix: Matrix) -> Tensor | None:
        if not matrix.has_bias:
            return None
        bias = self._source.vector(f"{self._prefix}{matrix.layer}.bias")
        return bias if matrix.rows is None else bias[torch.tensor(matrix.rows(), device=bias.device)]

    def vector(self, name: str, size: int, plus: float = 0.0) -> Tensor:
        vector = self.tensor(name, (size,))
        return vector.add_(plus) if plus else vector

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._source.vector(self._prefix + name).to(self.ops.device, self.ops.dtype, copy=True)

    def stacked(self, names: Sequence[str], size: int) -> Tensor:
        return torch.stack([self.vector(name, size) for name in names])

    def wide_vector(self, name: str, size: int, plus: float = 0.0) -> Tensor:
        vector = self._source.vector(self._prefix + name).to(self.ops.device, torch.float32, copy=True)
        return vector.add_(plus) if plus else vector

    def leave_out(self, scope: str) -> None:
        pass

    def distance_bias(self, name: str, num_buckets: int, num_heads: int, buckets: Sequence[int]) -> Tensor:
        table = self._source.vector(self._prefix + name)
        at = torch.tensor(buckets, device=table.device)
        return table[at].t().to(self.ops.device, torch.float32).contiguous()

    def filled(self, size: int, value: float) -> Tensor:
        return torch.full((size,), value, dtype=self.ops.dtype, device=self.ops.device)

    def constant(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.ops.device)

    def table(self, rows: Callable[[int], Tensor]) -> Tensor:
        return rows(self.max_positions).to(self.ops.device, self.ops.dtype)

    def rotation(self, rope: RopeConfig, *, interleaved: bool = False) -> Rotation:
        rotations, key = self._shared.rotations, (rope, interleaved)
        if key not in rotations:
            if rope.kind == "longrope":
                _tell_factors(rope, self.max_positions)
            rotations[key] = Rotation(rope.cos_sin(self.max_positions).to(self.ops.device), interleaved)
        return rotations[key]

    def attention(self, heads: Heads) -> int:
        self._shared.num_attention_layers += 1
        return self._shared.num_attention_layers - 1

    def fuse_layers(self, layers: Sequence[Layer], norm: Tensor) -> RunLayers | None:
        return self.ops.fuse_layers(layers, norm)


def _tell_factors(rope: RopeConfig, max_positions: int) -> None:
    """Logs which of LongRoPE's two sets of frequencies is used."""
    original = rope.original_max_positions
    if max_positions > original:
        logger.info(
            "LongRoPE uses the frequencies for sequences of more than %d tokens, for shorter sequences as well; "
            "--max-model-len %d selects the frequencies for short sequences",
            original,
            original,
        )
