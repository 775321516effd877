"""Reads weights from safetensors files: memory-mapped, read ahead on threads, and copied directly to the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.worker.errors import ModelError
from services.worker.json_files import MAX_INDEX_BYTES, is_inside, read_json, refuse_pointer
from services.worker.models import EncoderConfig, LlamaConfig, Matrix, ModelConfig, Place
from services.worker.progress import Progress
from services.worker.quantization import (
    DENSE,
    FLOATS,
    ITEM_BYTES,
    CheckpointQuantization,
    EitherWayFormat,
    MatrixFormat,
    StoredTensor,
    TransposedFormat,
    is_kv_scale,
    is_output_layer,
)
from services.worker.quantization.kinds import Weight
from services.worker.weights import consolidated
from services.worker.weights.pickles import how_to_convert
from services.worker.weights.read_ahead import ReadAhead

INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
# Threads that copy tensors to a GPU. Each copy reads memory-mapped pages and waits for their page faults; one thread
# would be too slow.
GPU_THREADS = 8
GPU_BYTES_AHEAD = 1 << 30
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Item:
    """A tensor, or one part of a tensor [count, ...] that stores a part for each expert."""

    tensor: str
    index: int | None = None


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
        self._files = CheckpointFiles(directory, device, config.base, config.own_name)
        self._heads = self._heads_to_reorder(config)
        self._shapes, self._unused, self._left_out = config.parameters, config.kind.unused, config.declaration.left_out
        self._quantization = config.quantization or CheckpointQuantization("none")
        self._formats: dict[str, MatrixFormat] = {}  # of each matrix
        self._items: dict[str, dict[str, Item]] = {}  # of each weight, in the order in which they are taken
        stored = self._stored(config)
        self._check(stored, config)
        sizes = {
            item: self._files.num_bytes(item)
            for items in self._items.values()
            for item in items.values()
            if item.tensor in self._files.names
        }
        on_gpu = device.type == "cuda"
        self._ahead = ReadAhead(
            sizes, self._read, GPU_THREADS if on_gpu else 1, budget=GPU_BYTES_AHEAD if on_gpu else 0
        )
        self._sizes = sizes
        self._progress = progress
        self._total = sum(sizes.values())
        self._taken = 0

    def weight(self, layer: str) -> Weight:
        tensors = {suffix: self._take(item) for suffix, item in self._items[layer].items() if item in self._sizes}
        rows, columns = self._shapes[layer]
        try:
            return self._formats[layer].read(tensors, rows, columns)
        except ModelError as error:
            raise ModelError(f"{layer} in {self._files.directory}: {error}") from error

    def vector(self, name: str) -> Tensor:
        [item] = self._items[name].values()
        return self._take(item).reshape(self._shapes[name])

    def _take(self, item: Item) -> Tensor:
        tensor = self._ahead.take(item)
        self._taken += self._sizes[item]
        self._progress(self._taken / self._total)
        return tensor

    def _read(self, item: Item) -> Tensor:
        tensor = self._files.read(item.tensor, item.index)
        if self._heads is not None and item.tensor.endswith((".q_proj.weight", ".k_proj.weight")):
            return consolidated.rotated_by_halves(tensor, self._heads)
        if self._device.type == "cpu" and tensor.numel():
            # The tensor is a view of mapped pages. Reading a byte of each page loads the pages before they are needed.
            # numpy reads the bytes, because torch would start a thread pool for the thread that reads ahead.
            tensor.flatten().view(torch.uint8).numpy()[::PAGE].max()
        return tensor

    def _heads_to_reorder(self, config: ModelConfig | EncoderConfig) -> int | None:
        """Returns the size of the heads whose rows must be reordered; None if the files have transformers' layout.
        Raises ModelError if the files have Mistral's layout, and the model is not one that Quire reads from it."""
        if not self._files.is_consolidated:
            return None
        network = config.network
        is_dense = config.architecture == "MistralForCausalLM" and config.quantization is None
        if not is_dense or not isinstance(network, LlamaConfig):
            raise ModelError(
                f"{self._files.directory} has its weights in Mistral's own layout only ({consolidated.SINGLE_FILE}), "
                f"which is supported for unquantized MistralForCausalLM; use a checkpoint with {SINGLE_FILE}"
            )
        return network.head_dim

    def _stored(self, config: ModelConfig | EncoderConfig) -> dict[str, StoredTensor]:
        """Returns the tensors that the checkpoint should have, by name, in the order in which the model takes the
        weights. Raises ModelError if a weight's format does not allow its shape."""
        stored: dict[str, StoredTensor] = {}
        matrices = config.declaration.matrices
        for name, shape in config.parameters.items():
            if name in matrices:
                layer, tensors = name, self._tensors(name, matrices[name])
            else:
                layer, _, suffix = name.rpartition(".")
                tensors = {suffix: StoredTensor((shape, (1, *shape)), FLOATS)}  # ERNIE stores a bias as a row
            place = matrices[layer].place if layer in matrices else None
            self._items[name] = {suffix: _item(layer, suffix, place) for suffix in tensors}
            for suffix, tensor in tensors.items():
                if place is not None:
                    tensor = replace(tensor, shapes=tuple((place.count, *shape) for shape in tensor.shapes))
                stored[self._items[name][suffix].tensor] = tensor
        return stored

    def _tensors(self, layer: str, matrix: Matrix) -> Mapping[str, StoredTensor]:
        """Chooses the format of a matrix, and returns the tensors that store it."""
        form = self._quantization.format_of(layer)
        if form is DENSE and matrix.is_transposed is not False:
            form = TransposedFormat() if matrix.is_transposed else EitherWayFormat()
        self._formats[layer] = form
        try:
            return self._formats[layer].stored(matrix.outputs, matrix.inputs)
        except ModelError as error:
            raise ModelError(f"{layer} in {self._files.directory}: {error}") from error

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
        layer beside tied embeddings, one of `Architecture.unused` or `Declaration.left_out`, a scale of the KV cache
        (read separately), or an unused scale or a zero bias of a quantized layer."""
        if name.endswith(self._unused) or name.startswith((*self._unused, *self._left_out)):
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

    def __init__(
        self,
        directory: Path,
        device: torch.device,
        base: str = "",
        own_name: Callable[[str], str | None] = lambda stored: stored,
    ) -> None:
        """`own_name`: from a tensor's name in transformers' layout to its name here; None for a tensor that is never
        read. `base`: prefix to put before all names, except the output layer's, if no tensor's name has it. Checkpoints
        that were saved without the output layer can lack it."""
        self.directory = directory
        self._device = "cpu" if device.type == "cpu" else str(device)
        self._handles: dict[str, Any] = {}
        file_of = self._find(INDEX, SINGLE_FILE)
        # Whether the files have Mistral's layout. Names are translated, the content is not.
        self.is_consolidated = file_of is None
        if file_of is None:
            file_of = self._find(consolidated.INDEX, consolidated.SINGLE_FILE)
            own_name = consolidated.transformers_name
        if file_of is None:
            raise ModelError(f"{directory} has no {SINGLE_FILE} and no {INDEX}{how_to_convert(directory)}")
        own = {_current_name(name): stored for stored in file_of if (name := own_name(stored)) is not None}
        if not any(name.startswith(base) for name in own):
            own = {name if is_output_layer(name) else base + name: stored for name, stored in own.items()}
        self._places = {name: (self._open(file_of[stored]), stored) for name, stored in own.items()}
        self.names = self._places.keys()

    def _find(self, index_file: str, single_file: str) -> dict[str, str] | None:
        """Returns the file of each tensor; None if there are no such files."""
        index = read_json(self.directory / index_file, MAX_INDEX_BYTES)
        if index is not None:
            return self._weight_map(index_file, index)
        if not (self.directory / single_file).exists():
            return None
        return dict.fromkeys(self._open(single_file).keys(), single_file)

    def _weight_map(self, index_file: str, index: Mapping[str, Any]) -> dict[str, str]:
        """Returns the file of each tensor, from the index. Raises ModelError if a file is outside the directory."""
        files = index.get("weight_map")
        if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
            raise ModelError(
                f"{self.directory / index_file}: weight_map is not an object that maps each tensor to a file"
            )
        outside = next((file for file in files.values() if not is_inside(file)), None)
        if outside is not None:
            raise ModelError(f"{self.directory / index_file} names {outside!r}, which is outside the model's directory")
        return files

    def read(self, name: str, index: int | None = None) -> Tensor:
        """`index`: reads only this part of a tensor [count, ...]."""
        file, stored = self._places[name]
        tensor: Tensor = file.get_tensor(stored) if index is None else file.get_slice(stored)[index]
        return tensor

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Returns a tensor's shape and type without reading its data. Raises ModelError if the index names a file that
        lacks the tensor.
        """
        from safetensors import SafetensorError

        try:
            file, stored_name = self._places[name]
            stored = file.get_slice(stored_name)
        except SafetensorError as error:
            raise ModelError(f"{self.directory / INDEX} lists {name} in a file that lacks it") from error
        return tuple(stored.get_shape()), stored.get_dtype()

    def num_bytes(self, item: Item) -> int:
        shape, dtype = self.describe(item.tensor)
        return math.prod(shape if item.index is None else shape[1:]) * ITEM_BYTES[dtype]

    def _open(self, file: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if file not in self._handles:
            refuse_pointer(self.directory / file)
            try:
                self._handles[file] = safe_open(self.directory / file, framework="pt", device=self._device)
            except (OSError, SafetensorError, ValueError) as error:
                raise ModelError(f"{self.directory / file} cannot be read: {error}") from error
        return self._handles[file]


def _current_name(name: str) -> str:
    """Returns the name that transformers now gives to a tensor. Old checkpoints of encoders have TensorFlow's names."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _item(layer: str, suffix: str, place: Place | None) -> Item:
    """Returns where a part of a layer is stored. `suffix`: weight, bias, or the name that the matrix's format gives."""
    if place is None:
        return Item(f"{layer}.{suffix}" if layer else suffix)
    stack = layer.removesuffix(f".{place.index}")
    # transformers stores the scales of `gate_up_proj` as `gate_up_proj_scale_inv`.
    return Item(stack if suffix == "weight" else f"{stack}_{suffix.removeprefix('weight_')}", place.index)


def some(names: Iterable[str]) -> str:
    """Returns a text for errors that has the first name and the number of further names."""
    first, *rest = sorted(names)
    return f"{first} and {len(rest)} more tensors" if rest else first
