"""What is in a GGUF file: metadata under llama.cpp's keys, and tensors under its names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.worker.errors import ModelError

if TYPE_CHECKING:
    from gguf import ReaderTensor

# Layers of a block by transformers' names, with llama.cpp's.
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
_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


class GGUFFile:
    """Mapped from disk: a tensor is read when its numbers are."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError if it cannot be read."""
        try:
            from gguf import GGUFReader
        except ImportError as error:
            raise ModelError(f"{path} is a GGUF file, which takes the Python package gguf to read") from error
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise ModelError(f"{path} cannot be read as a GGUF file: {error}") from error
        self.path = path
        self.tensors: Mapping[str, ReaderTensor] = {tensor.name: tensor for tensor in self._reader.tensors}
        self.architecture: str = self.value("general.architecture", "nothing")

    def value(self, key: str, default: Any = None) -> Any:
        """Of the metadata. Arrays are slow: they are parsed number by number."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def setting(self, key: str, default: Any = None) -> Any:
        """Of the metadata, under the architecture's own name."""
        return self.value(f"{self.architecture}.{key}", default)

    def required(self, key: str) -> Any:
        """A setting that must be there. Raises ModelError if it is not."""
        value = self.setting(key)
        if value is None:
            raise ModelError(f"{self.path} lacks {self.architecture}.{key} in its metadata")
        return value


def tensor_name(parameter: str) -> str:
    """llama.cpp's name for a parameter: a layer's matrix, or a `.weight` or `.bias` by its whole name."""
    layer, _, suffix = parameter.rpartition(".")
    if suffix not in ("weight", "bias"):
        layer, suffix = parameter, "weight"
    if layer in _NAMES:
        return f"{_NAMES[layer]}.{suffix}"
    _, _, index, name = layer.split(".", 3)
    return f"blk.{index}.{_BLOCK_NAMES[name]}.{suffix}"
