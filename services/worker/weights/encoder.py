"""Names, shapes and sources of an encoder's weights. Names are those of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from services.worker.errors import ModelError
from services.worker.models import EncoderConfig, Parameter
from services.worker.ops import Ops
from services.worker.progress import Progress
from services.worker.quantization import FLOATS
from services.worker.weights.dummy_source import DummySource
from services.worker.weights.safetensors_source import CheckpointFiles, some
from services.worker.weights.source import WeightSource

# First parts of the names of ignored tensors: heads for other tasks, and buffers in old checkpoints.
_UNUSED = ("pooler.", "cls.", "lm_head.", "embeddings.position_ids", "embeddings.token_type_ids")


def encoder_parameters(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each weight by its name, in the order in which an encoder takes them. Names are formed as in
    `Declaration.parameters`.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings": (config.vocab_size, hidden),
        "embeddings.position_embeddings": (config.num_positions, hidden),
        "embeddings.token_type_embeddings": (config.num_token_types, hidden),
    }
    shapes |= _norm("embeddings.LayerNorm", hidden)
    for index in range(config.num_layers):
        prefix = f"encoder.layer.{index}"
        attention = f"{prefix}.attention"
        for name in ("query", "key", "value"):
            shapes |= _linear(f"{attention}.self.{name}", hidden, hidden)
        shapes |= _linear(f"{attention}.output.dense", hidden, hidden)
        shapes |= _norm(f"{attention}.output.LayerNorm", hidden)
        shapes |= _linear(f"{prefix}.intermediate.dense", inner, hidden)
        shapes |= _linear(f"{prefix}.output.dense", hidden, inner)
        shapes |= _norm(f"{prefix}.output.LayerNorm", hidden)
    return shapes


def open_encoder_weights(
    directory: Path, config: EncoderConfig, ops: Ops, load_format: str, progress: Progress
) -> WeightSource:
    """Opens an encoder's weights. Raises ModelError if the tensors in `directory` do not match `config`."""
    if load_format == "dummy":
        return DummySource(encoder_parameters(config), ops.device, ops.dtype)
    if load_format == "gguf":
        raise ModelError(f"--load-format is gguf, but {directory} is not a GGUF file")
    return EncoderSource(directory, config, progress, ops.device)


class EncoderSource:
    """Reads an encoder's weights from safetensors files. Their tensor names can begin with `config.prefix`, such as
    "bert.". See `WeightSource`."""

    def __init__(self, directory: Path, config: EncoderConfig, progress: Progress, device: torch.device) -> None:
        self._files = CheckpointFiles(directory, device)
        self._prefix = config.prefix if any(name.startswith(config.prefix) for name in self._files.names) else ""
        self._progress = progress
        self._num_taken = 0
        self._shapes = encoder_parameters(config)
        wanted = {self._stored(name): shape for name, shape in self._shapes.items()}
        if missing := wanted.keys() - self._files.names:
            raise ModelError(f"{directory} lacks {some(missing)}, which {config.architecture} needs")
        if unexpected := {name for name in self._files.names - wanted.keys() if not self._is_unused(name)}:
            raise ModelError(f"{directory} holds {some(unexpected)}, which {config.architecture} does not use")
        for name, shape in wanted.items():
            found, dtype = self._files.describe(name)
            if found != shape:
                raise ModelError(f"{name} in {directory} is {found}; config.json says {shape}")
            if dtype not in FLOATS:
                raise ModelError(f"{name} in {directory} is {dtype}; supported are {', '.join(FLOATS)}")

    def weight(self, layer: str) -> Tensor:
        return self._take(layer)

    def vector(self, name: str) -> Tensor:
        return self._take(name)

    def _take(self, name: str) -> Tensor:
        self._num_taken += 1
        self._progress(self._num_taken / len(self._shapes))
        return self._files.read(self._stored(name))

    def _stored(self, name: str) -> str:
        return self._prefix + (f"{name}.weight" if len(self._shapes[name]) == 2 else name)

    def _is_unused(self, name: str) -> bool:
        return name.removeprefix(self._prefix).startswith(_UNUSED)


def _linear(name: str, rows: int, columns: int) -> Iterator[Parameter]:
    yield name, (rows, columns)
    yield f"{name}.bias", (rows,)


def _norm(name: str, size: int) -> Iterator[Parameter]:
    yield f"{name}.weight", (size,)
    yield f"{name}.bias", (size,)
