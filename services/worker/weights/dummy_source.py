"""Random weights in a model's shapes, to measure a model of any size without a checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from services.worker.quantization import CheckpointQuantization
from services.worker.quantization.kinds import Weight

STANDARD_DEVIATION = 0.02


class DummySource:
    """Draws weights from a normal distribution on the device, and quantizes them as configured. Weights of norms are 1.
    On devices of one kind, the same seed gives the same weights, whatever the order in which they are taken."""

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        device: torch.device,
        dtype: torch.dtype,
        quantization: CheckpointQuantization | None = None,
        seed: int = 0,
    ) -> None:
        """`shapes`: the result of `parameters`."""
        self._shapes = shapes
        self._quantization = quantization or CheckpointQuantization("none")
        self._device, self._dtype, self._seed = device, dtype, seed
        self._generator = torch.Generator(device)

    def weight(self, layer: str) -> Weight:
        return self._quantization.format_of(layer).quantize(self._draw(layer))

    def vector(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if name.endswith(".weight") and len(shape) == 1:  # of a norm
            return torch.ones(shape, device=self._device, dtype=self._dtype)
        return self._draw(name)

    def _draw(self, name: str) -> Tensor:
        self._generator.manual_seed(zlib.crc32(name.encode(), self._seed))
        drawn = torch.randn(self._shapes[name], device=self._device, dtype=self._dtype, generator=self._generator)
        return drawn.mul_(STANDARD_DEVIATION)
