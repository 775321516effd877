"""Where a decoder's weights come from: safetensors files, read tensor by tensor, or a random generator.

No source holds more than the tensor it hands out: the operations pack each into their own layout, the only copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from services.worker.errors import ModelError
from services.worker.models.config import ModelConfig, read_json
from services.worker.progress import Progress

if TYPE_CHECKING:
    from safetensors import safe_open

Shapes = Mapping[str, tuple[int, ...]]

_FLOAT_TYPES = ("F32", "F16", "BF16")


class WeightSource(Protocol):
    def take(self, name: str) -> Tensor:
        """The tensor of that name, in the checkpoint's type, on the CPU."""
        ...


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint and its shape, by transformers' names."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    projections = {
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    if config.fused_projections:
        projections |= {
            "self_attn.qkv_proj": (queries + 2 * keys, hidden, config.qkv_bias),
            "mlp.gate_up_proj": (2 * inner, hidden, config.mlp_bias),
        }
    else:
        projections |= {
            "self_attn.q_proj": (queries, hidden, config.qkv_bias),
            "self_attn.k_proj": (keys, hidden, config.qkv_bias),
            "self_attn.v_proj": (keys, hidden, config.qkv_bias),
            "mlp.gate_proj": (inner, hidden, config.mlp_bias),
            "mlp.up_proj": (inner, hidden, config.mlp_bias),
        }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(len(config.layers)):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        for name, (rows, columns, bias) in projections.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        if config.qk_norm:
            shapes[prefix + "self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[prefix + "self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


class SafetensorsSource:
    """A checkpoint in one safetensors file, or in several with an index; a tensor is read when it is taken."""

    def __init__(self, directory: Path, config: ModelConfig, progress: Progress) -> None:
        """`progress` is told the fraction of weights taken. Raises ModelError if the files are not as `config` says."""
        self._directory = directory
        self._files: dict[str, safe_open] = {}
        self._file_of = self._index()
        shapes = expected_shapes(config)
        self._check(shapes, config)
        self._progress = progress
        self._total = sum(math.prod(shape) for shape in shapes.values())
        self._taken = 0

    def take(self, name: str) -> Tensor:
        tensor: Tensor = self._open(self._file_of[name]).get_tensor(name)
        self._taken += tensor.numel()
        self._progress(self._taken / self._total)
        return tensor

    def _index(self) -> dict[str, str]:
        """The file that holds each tensor."""
        index = read_json(self._directory / "model.safetensors.index.json")
        if index is not None:
            return dict(index["weight_map"])
        if not (self._directory / "model.safetensors").exists():
            raise ModelError(f"{self._directory} has no model.safetensors and no model.safetensors.index.json")
        return dict.fromkeys(self._open("model.safetensors").keys(), "model.safetensors")

    def _open(self, file: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if file not in self._files:
            try:
                self._files[file] = safe_open(self._directory / file, framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{self._directory / file} cannot be read: {error}") from error
        return self._files[file]

    def _check(self, shapes: Shapes, config: ModelConfig) -> None:
        missing = shapes.keys() - self._file_of.keys()
        if missing:
            raise ModelError(f"{self._directory} lacks {_some(missing)}, which {config.architecture} needs")
        unexpected = {name for name in self._file_of.keys() - shapes.keys() if not _is_redundant(name)}
        if unexpected:
            raise ModelError(f"{self._directory} holds {_some(unexpected)}, which {config.architecture} has no use for")
        for name, shape in shapes.items():
            stored = self._open(self._file_of[name]).get_slice(name)
            if tuple(stored.get_shape()) != shape:
                raise ModelError(
                    f"{name} in {self._directory} is {tuple(stored.get_shape())}; config.json says {shape}"
                )
            if stored.get_dtype() not in _FLOAT_TYPES:
                raise ModelError(
                    f"{name} in {self._directory} is {stored.get_dtype()}; only {', '.join(_FLOAT_TYPES)} load"
                )


class DummySource:
    """Weights drawn from a normal distribution, the same for the same seed: for benchmarks, without a checkpoint."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self._shapes = expected_shapes(config)
        self._generator = torch.Generator().manual_seed(seed)

    def take(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        return torch.randn(shape, generator=self._generator) * 0.02


def _is_redundant(name: str) -> bool:
    """Buffers that old checkpoints hold, and an output layer beside tied embeddings."""
    return name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"


def _some(names: Iterable[str]) -> str:
    first, *rest = sorted(names)
    return f"{first} and {len(rest)} more tensors" if rest else first
