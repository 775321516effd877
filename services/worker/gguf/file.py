"""Reads a GGUF file: metadata under llama.cpp's keys, and tensors under llama.cpp's names."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from services.worker.errors import ModelError
from services.worker.gguf.header import HeaderReader, TensorInfo
from services.worker.json_files import refuse_pointer

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

# Names of the layers in a transformer block: transformers' name -> llama.cpp's name.
_BLOCK_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ROPE_FACTORS = "rope_freqs.weight"  # Llama 3's RoPE scaling: stored as a tensor of divisors, not as metadata
_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    # Memory-mapped. F32 and F16 tensors are float32 and float16 arrays of `shape`. Other tensors are arrays of bytes,
    # whose last axis holds the blocks of one row.
    data: NDArray[Any]


class GGUFFile:
    """A memory-mapped GGUF file. The data of a tensor is read only when it is used."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError if the file cannot be read."""
        refuse_pointer(path)
        try:
            mapped = np.memmap(path, mode="r", dtype=np.uint8)
            self._metadata, infos = HeaderReader(mapped).read()
            self.tensors = {info.name: _tensor(mapped, info) for info in infos}
        except ImportError as error:
            raise ModelError(f"{path} is a GGUF file, which needs the Python package gguf to read") from error
        except (OSError, ValueError, struct.error, OverflowError, LookupError) as error:
            raise ModelError(f"{path} cannot be read as a GGUF file: {error}") from error
        self.path = path
        self.architecture = str(self.value("general.architecture", "nothing"))

    def value(self, key: str, default: Any = None) -> Any:
        """Returns the metadata value of `key`: `default` if it is missing, None if it is an array of strings."""
        return self._metadata.get(key, default)

    def setting(self, key: str, default: Any = None) -> Any:
        """Returns the metadata value of "<architecture>.<key>", such as llama.block_count for the key block_count."""
        return self.value(f"{self.architecture}.{key}", default)

    def required(self, key: str) -> Any:
        """Returns the metadata value of "<architecture>.<key>". Raises ModelError if the file lacks this value."""
        value = self.setting(key)
        if value is None:
            raise ModelError(f"{self.path} lacks {self.architecture}.{key} in its metadata")
        return value


def _tensor(mapped: NDArray[np.uint8], info: TensorInfo) -> GGUFTensor:
    """Returns the tensor, a view of the mapped file. Raises ValueError if the file ends before the tensor does, or if
    the gguf package does not know the tensor's type."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quant_shape_to_byte_shape

    kind = GGMLQuantizationType(info.kind)
    shape = quant_shape_to_byte_shape(info.shape, kind)
    data = mapped[info.offset : info.offset + math.prod(shape)]
    if len(data) < math.prod(shape):
        raise ValueError(f"it ends before {info.name} does")
    data = data.reshape(shape)
    number_types = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}
    return GGUFTensor(kind, info.shape, data.view(number_types[kind]) if kind in number_types else data)


def tensor_name(parameter: str) -> str:
    """Returns llama.cpp's name of a tensor. `parameter`: the tensor's name in `Declaration.parameters`. In this form,
    a matrix has the name of its layer, and the name of any other tensor ends in .weight or .bias."""
    layer, _, suffix = parameter.rpartition(".")
    if suffix not in ("weight", "bias"):
        layer, suffix = parameter, "weight"
    if layer in _NAMES:
        return f"{_NAMES[layer]}.{suffix}"
    _, _, index, name = layer.split(".", 3)
    return f"blk.{index}.{_BLOCK_NAMES[name]}.{suffix}"
