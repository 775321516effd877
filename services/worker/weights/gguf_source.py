"""Reads weights from a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.errors import ModelError
from services.worker.gguf import FORMATS, ROPE_FACTORS, GGUFFile, tensor_name
from services.worker.models import LlamaConfig, ModelConfig
from services.worker.progress import Progress
from services.worker.quantization.kinds import Weight
from services.worker.weights.gguf_blocks import decode, decode_floats
from services.worker.weights.read_ahead import ReadAhead

GPU_THREADS = 8  # numpy decodes on the host; each thread decodes one matrix at a time
GPU_BYTES_AHEAD = 1 << 30


class GGUFSource:
    """Reads a decoder's weights. Threads decode tensors before they are taken: one tensor ahead on a CPU, up to one
    gigabyte ahead on a GPU. See `WeightSource`.
    """

    def __init__(self, path: Path, config: ModelConfig, progress: Progress, device: torch.device) -> None:
        """`progress` is called after each tensor that the caller takes, with the fraction of all bytes taken so far.
        Raises ModelError if the file does not match `config`."""
        self._file = GGUFFile(path)
        self._config, self._progress, self._device = config, progress, device
        shapes = config.parameters
        self._check(shapes)
        self._sizes = {name: self._file.tensors[tensor_name(name)].data.nbytes for name in shapes}
        on_gpu = device.type == "cuda"
        self._ahead = ReadAhead(
            self._sizes, self._read, GPU_THREADS if on_gpu else 1, budget=GPU_BYTES_AHEAD if on_gpu else 0
        )
        self._taken = 0

    def weight(self, layer: str) -> Weight:
        return self._take(layer).to(self._device)

    def vector(self, name: str) -> Tensor:
        vector = self._take(name)
        assert isinstance(vector, Tensor)
        return vector.to(self._device)

    def _take(self, name: str) -> Weight:
        weight = self._ahead.take(name)
        self._taken += self._sizes[name]
        self._progress(self._taken / sum(self._sizes.values()))
        return weight

    def _read(self, name: str) -> Weight:
        tensor = self._file.tensors[tensor_name(name)]
        data = tensor.data
        if self._file.architecture == "llama" and ".self_attn." in name:
            network = self._config.network
            assert isinstance(network, LlamaConfig)
            if ".q_proj" in name:
                data = data[rotated_halves(network.num_heads, network.head_dim)]
            elif ".k_proj" in name:
                data = data[rotated_halves(network.num_kv_heads, network.head_dim)]
        return decode(data, tensor.kind) if len(tensor.shape) == 2 else decode_floats(data, tensor.kind)

    def _check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        file = self._file
        for parameter, shape in shapes.items():
            name = tensor_name(parameter)
            if name not in file.tensors:
                raise ModelError(f"{file.path} lacks {name}, which {self._config.architecture} needs")
            stored = file.tensors[name]
            if stored.shape != shape:
                raise ModelError(f"{name} in {file.path} is {stored.shape}; its metadata says {shape}")
            if stored.kind.name not in FORMATS:
                raise ModelError(f"{name} in {file.path} is {stored.kind.name}; supported are {', '.join(FORMATS)}")
        unexpected = sorted(file.tensors.keys() - {tensor_name(name) for name in shapes} - {ROPE_FACTORS})
        if unexpected:
            raise ModelError(f"{file.path} holds {unexpected[0]}, which {self._config.architecture} does not use")


def rotated_halves(num_heads: int, head_dim: int) -> NDArray[np.intp]:
    """Returns the permutation that brings the rows of q or k from a GGUF file into transformers' order: row i in
    transformers' order is row result[i] of the file. int64 [num_heads · head_dim].

    For Llama, llama.cpp's RoPE rotates the pairs of dimensions (2 j, 2 j + 1) of a head; transformers' RoPE rotates the
    pairs (j, j + head_dim / 2). So llama.cpp's converter moves row j of a head's first half to 2 j, and row j of its
    second half to 2 j + 1.
    """
    rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)
