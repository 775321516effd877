"""The paged KV cache: how many blocks fit, and one pair of page tensors per layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.host_memory import Asked, SwapSpace, available_memory
from services.worker.models.config import ModelConfig
from services.worker.models.kv_scales import KVScales
from services.worker.ops.interface import KVPages, Ops

DEFAULT_CPU_BYTES = 1 << 30
# The default takes at most this part of the memory that is available.
DEFAULT_CPU_FRACTION = 0.5
# What a start may be told that leaves more of a GPU's memory.
LESS_MEMORY = "lower --max-num-batched-tokens or --max-num-seqs, or take smaller weights with --quantization"


def resolve_kv_cache_dtype(name: str, ops: Ops) -> torch.dtype:
    """Raises ModelError for a type that the operations do not keep keys and values in."""
    if name == "auto":
        return ops.dtype
    if not ops.fp8_kv_cache:
        kept = str(ops.dtype).removeprefix("torch.")
        raise ModelError(
            f"--kv-cache-dtype is {name}, but the {ops.name} operations keep keys and values in {kept} only"
        )
    return torch.float8_e4m3fn


def block_bytes(model: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return 2 * len(model.layers) * model.num_kv_heads * block_size * model.head_dim * dtype.itemsize


def count_blocks(config: WorkerConfig, model: ModelConfig, dtype: torch.dtype, measured: int | None) -> int:
    """How many blocks the configured memory holds. `measured`: the bytes that a GPU has left for them; None on a CPU.
    Raises ModelError if that is not a single block."""
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    if config.kv_cache_memory_bytes is not None:
        budget = config.kv_cache_memory_bytes
    else:
        budget = _default_cpu_bytes() if measured is None else measured
    per_block = block_bytes(model, config.block_size, dtype)
    if budget < per_block:
        given = measured is None or config.kv_cache_memory_bytes is not None
        change = "--kv-cache-memory-bytes" if given else "--gpu-memory-utilization"
        raise ModelError(
            f"{max(0, budget)} bytes of KV cache hold no block of {config.block_size} tokens, "
            f"which takes {per_block}; raise {change}" + ("" if given else f", {LESS_MEMORY}")
        )
    return budget // per_block


def _default_cpu_bytes() -> int:
    available = available_memory()
    return (
        DEFAULT_CPU_BYTES
        if available is None
        else min(DEFAULT_CPU_BYTES, int(DEFAULT_CPU_FRACTION * available.num_bytes))
    )


def asked_bytes(config: WorkerConfig, model: ModelConfig, dtype: torch.dtype) -> tuple[Asked, ...]:
    """What the start was told to take, whatever the memory; nothing if it was told nothing."""
    if config.num_gpu_blocks_override is not None:
        num_bytes = config.num_gpu_blocks_override * block_bytes(model, config.block_size, dtype)
        return (Asked("--num-gpu-blocks-override", num_bytes),)
    if config.kv_cache_memory_bytes is not None:
        return (Asked("--kv-cache-memory-bytes", config.kv_cache_memory_bytes),)
    return ()


def count_host_blocks(swap: SwapSpace, config: WorkerConfig, model: ModelConfig, dtype: torch.dtype) -> int:
    """How many blocks the swap space holds."""
    return swap.num_bytes // block_bytes(model, config.block_size, dtype)


def resolve_max_model_len(config: WorkerConfig, model: ModelConfig, capacity: int) -> int:
    """Tokens of the longest sequence: as configured, which the model takes, or what the model and `capacity` tokens of
    KV cache allow. Raises ModelError when more is configured than the cache allows."""
    if config.max_model_len is None:
        return min(model.max_model_len, capacity)
    if config.max_model_len > capacity:
        raise ModelError(
            f"--max-model-len is {config.max_model_len}, but the KV cache holds {capacity} tokens; "
            "raise --kv-cache-memory-bytes or lower --max-model-len"
        )
    return config.max_model_len


def allocate_pages(
    model: ModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype,
    scales: Sequence[KVScales] | None = None,
) -> list[KVPages]:  # fmt: skip
    """A KVPages per layer, with the layer's `scales` (None: 1). Zeros: memory is committed by the operating system as
    pages are first written."""
    scales = scales or [KVScales() for _ in model.layers]
    shape = (num_blocks, model.num_kv_heads, block_size, model.head_dim)
    return [
        KVPages(
            torch.zeros(shape, device=device, dtype=dtype),
            torch.zeros(shape, device=device, dtype=dtype),
            of_layer.key,
            of_layer.value,
        )
        for of_layer in scales
    ]
