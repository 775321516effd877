"""Reads weights from safetensors files: memory-mapped, read ahead on threads, and copied directly to the device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.worker.errors import ModelError
from services.worker.json_files import is_inside, read_json, refuse_pointer
from services.worker.models import EncoderConfig, ModelConfig
from services.worker.progress import Progress
from services.worker.quantization import (
    DENSE,
    FLOATS,
    ITEM_BYTES,
    CheckpointQuantization,
    MatrixFormat,
    StoredTensor,
    is_kv_scale,
)
from services.worker.quantization.kinds import Weight
from services.worker.weights.read_ahead import ReadAhead

INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
# Threads that copy tensors to a GPU. Each copy reads memory-mapped pages and waits for their page faults; one thread
# would be too slow.
GPU_THREADS = 8
GPU_BYTES_AHEAD = 1 << 30
PAGE = 4096


class SafetensorsSource:
    """Reads a model's weights from one safetensors file, or from several with an index. Threads read ahead: on a CPU
    one tensor, into the operating system's page cache; on a GPU up to one gigabyte, into the GPU's memory. See
    `WeightSource`."""

    def __init__(
        self, directory: Path, config: ModelConfig | EncoderConfig, progress: Progress, device: torch.device
    ) -> None:
        """`progress` is called after each tensor that the caller takes, with the fraction of all bytes taken so far.
        Raises ModelError if the files do not match `config`."""
        self._device = device
        self._files = CheckpointFiles(directory, device, config.kind.base)
        self._unused = config.kind.unused
        self._quantization = config.quantization or CheckpointQuantization("none")
        self._matrices: dict[str, tuple[MatrixFormat, tuple[int, int], list[str]]] = {}
        stored = self._stored(config)
        self._check(stored, config)
        sizes = {name: self._files.num_bytes(name) for name in stored if name in self._files.names}
        on_gpu = device.type == "cuda"
        self._ahead = ReadAhead(
            sizes, self._read, GPU_THREADS if on_gpu else 1, budget=GPU_BYTES_AHEAD if on_gpu else 0
        )
        self._sizes = sizes
        self._progress = progress
        self._total = sum(sizes.values())
        self._taken = 0

    def weight(self, layer: str) -> Weight:
        form, (rows, columns), suffixes = self._matrices[layer]
        tensors = {suffix: self._take(name) for suffix in suffixes if (name := f"{layer}.{suffix}") in self._sizes}
        try:
            return form.read(tensors, rows, columns)
        except ModelError as error:
            raise ModelError(f"{layer} in {self._files.directory}: {error}") from error

    def vector(self, name: str) -> Tensor:
        return self._take(name)

    def _take(self, name: str) -> Tensor:
        tensor = self._ahead.take(name)
        self._taken += self._sizes[name]
        self._progress(self._taken / self._total)
        return tensor

    def _read(self, name: str) -> Tensor:
        tensor = self._files.read(name)
        if self._device.type == "cpu" and tensor.numel():
            # The tensor is a view of mapped pages. Reading a byte of each page loads the pages before they are needed.
            # numpy reads the bytes, because torch would start a thread pool for the thread that reads ahead.
            tensor.flatten().view(torch.uint8).numpy()[::PAGE].max()
        return tensor

    def _stored(self, config: ModelConfig | EncoderConfig) -> dict[str, StoredTensor]:
        """Returns the tensors that the checkpoint should have, by name, in the order in which the model takes the
        weights. Raises ModelError if a weight's format does not allow its shape."""
        stored: dict[str, StoredTensor] = {}
        for name, shape in config.parameters.items():
            if len(shape) == 1:
                stored[name] = StoredTensor((shape,), FLOATS)
                continue
            rows, columns = shape
            form = self._quantization.format_of(name)
            try:
                tensors = form.stored(rows, columns)
            except ModelError as error:
                raise ModelError(f"{name} in {self._files.directory}: {error}") from error
            self._matrices[name] = (form, (rows, columns), list(tensors))
            stored |= {f"{name}.{suffix}": tensor for suffix, tensor in tensors.items()}
        return stored

    def _check(self, stored: Mapping[str, StoredTensor], config: ModelConfig | EncoderConfig) -> None:
        files = self._files
        missing = {name for name, tensor in stored.items() if tensor.required} - files.names
        if missing:
            raise ModelError(f"{files.directory} lacks {some(missing)}, which {config.architecture} needs")
        unexpected = {name for name in files.names - stored.keys() if not self._is_redundant(name)}
        if unexpected:
            raise ModelError(f"{files.directory} holds {some(unexpected)}, which {config.architecture} does not use")
        for name, wanted in stored.items():
            if name not in files.names:
                continue
            shape, dtype = files.describe(name)
            if shape not in wanted.shapes:
                raise ModelError(f"{name} in {files.directory} is {shape}; config.json says {wanted.shapes[0]}")
            if dtype not in wanted.dtypes:
                raise ModelError(f"{name} in {files.directory} is {dtype}; supported are {', '.join(wanted.dtypes)}")

    def _is_redundant(self, name: str) -> bool:
        """Returns whether to ignore a tensor that the model does not take: a buffer of an old checkpoint, an output
        layer beside tied embeddings, one of `Architecture.unused`, a scale of the KV cache (read separately), or an
        unused scale or a zero bias of a quantized layer."""
        if name.startswith(self._unused) or name.endswith(self._unused):
            return True
        if name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight" or is_kv_scale(name):
            return True
        layer, _, suffix = name.rpartition(".")
        if suffix in self._quantization.unused:
            return True
        is_quantized = self._quantization.format_of(layer) is not DENSE
        if suffix == "bias" and is_quantized and self._quantization.zero_biases:
            return not self._files.read(name).any()
        return False


class CheckpointFiles:
    """The safetensors files of a checkpoint, all memory-mapped. Several threads can read tensors at the same time."""

    def __init__(self, directory: Path, device: torch.device, base: str = "") -> None:
        """`base`: prefix to put before all names if no tensor's name has it."""
        self.directory = directory
        self._device = "cpu" if device.type == "cpu" else str(device)
        self._handles: dict[str, Any] = {}
        index = read_json(directory / INDEX)
        if index is not None:
            self._file_of = {name: self._open(file) for name, file in self._weight_map(index).items()}
        elif (directory / SINGLE_FILE).exists():
            handle = self._open(SINGLE_FILE)
            self._file_of = dict.fromkeys(handle.keys(), handle)
        else:
            raise ModelError(f"{directory} has no {SINGLE_FILE} and no {INDEX}")
        self._base = "" if any(name.startswith(base) for name in self._file_of) else base
        if self._base:
            self._file_of = {base + name: file for name, file in self._file_of.items()}
        self.names = self._file_of.keys()

    def _weight_map(self, index: Mapping[str, Any]) -> dict[str, str]:
        """Returns the file of each tensor, from the index. Raises ModelError if a file is outside the directory."""
        files = index.get("weight_map")
        if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
            raise ModelError(f"{self.directory / INDEX}: weight_map is not an object that maps each tensor to a file")
        outside = next((file for file in files.values() if not is_inside(file)), None)
        if outside is not None:
            raise ModelError(f"{self.directory / INDEX} names {outside!r}, which is outside the model's directory")
        return files

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._file_of[name].get_tensor(name.removeprefix(self._base))
        return tensor

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Returns a tensor's shape and type without reading its data. Raises ModelError if the index names a file that
        lacks the tensor.
        """
        from safetensors import SafetensorError

        try:
            stored = self._file_of[name].get_slice(name.removeprefix(self._base))
        except SafetensorError as error:
            raise ModelError(f"{self.directory / INDEX} lists {name} in a file that lacks it") from error
        return tuple(stored.get_shape()), stored.get_dtype()

    def num_bytes(self, name: str) -> int:
        shape, dtype = self.describe(name)
        return math.prod(shape) * ITEM_BYTES[dtype]

    def _open(self, file: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if file not in self._handles:
            refuse_pointer(self.directory / file)
            try:
                self._handles[file] = safe_open(self.directory / file, framework="pt", device=self._device)
            except (OSError, SafetensorError, ValueError) as error:
                raise ModelError(f"{self.directory / file} cannot be read: {error}") from error
        return self._handles[file]


def some(names: Iterable[str]) -> str:
    """Returns a text for errors that has the first name and the number of further names."""
    first, *rest = sorted(names)
    return f"{first} and {len(rest)} more tensors" if rest else first
