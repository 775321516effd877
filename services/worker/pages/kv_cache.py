"""Sizes the paged KV cache and allocates its tensors: one pair per layer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.models import ModelConfig
from services.worker.ops import Heads, KVPages, Ops
from services.worker.pages.host_memory import Asked, SwapSpace
from services.worker.pages.mapped import mapped_zeros
from services.worker.weights import KVScales
from shared.host_memory import available_memory, in_words

logger = logging.getLogger(__name__)

DEFAULT_CPU_BYTES = 1 << 30
# By default, the KV cache in host memory takes at most this fraction of the memory that weights and swap space leave.
DEFAULT_CPU_FRACTION = 0.5
RAISE_BYTES = "raise --kv-cache-memory-bytes"
# Advice for error messages: the options that free memory on a GPU.
LESS_MEMORY = "lower --max-num-batched-tokens or --max-num-seqs, or take smaller weights with --quantization"


def resolve_kv_cache_dtype(name: str, ops: Ops) -> torch.dtype:
    """Returns the data type of keys and values in the KV cache. Raises ModelError if `ops` does not support it."""
    if name == "auto":
        return ops.dtype
    if not ops.fp8_kv_cache:
        kept = str(ops.dtype).removeprefix("torch.")
        raise ModelError(
            f"--kv-cache-dtype is {name}, but the {ops.name} operations keep keys and values in {kept} only"
        )
    return torch.float8_e4m3fn


def block_bytes(model: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Returns the size of one block in bytes: keys and values of all layers."""
    return sum(heads.num_elements for heads in model.attention) * block_size * dtype.itemsize


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory for KV blocks in bytes, and advice on how to get more of it, for an error message."""

    num_bytes: int
    change: str


def count_blocks(config: WorkerConfig, model: ModelConfig, dtype: torch.dtype, default: Callable[[], Budget]) -> int:
    """Returns the configured number of blocks. If no number is configured, returns how many blocks fit into the
    configured memory. If no memory is configured either, `default()` gives the memory. Raises ModelError if not even
    one block fits."""
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    if config.kv_cache_memory_bytes is not None:
        budget = Budget(config.kv_cache_memory_bytes, RAISE_BYTES)
    else:
        budget = default()
    per_block = block_bytes(model, config.block_size, dtype)
    if budget.num_bytes < per_block:
        raise ModelError(
            f"{max(0, budget.num_bytes)} bytes of KV cache hold no block of {config.block_size} tokens, "
            f"which takes {per_block} bytes; {budget.change}"
        )
    return budget.num_bytes // per_block


def default_cpu_budget(
    num_weight_bytes: int, swap: SwapSpace, num_workers: int = 1, share: int | None = None
) -> Budget:
    """Returns the default size of a KV cache in host memory. It leaves room for weights and swap space, which are
    allocated later. `num_workers`: number of workers on this host; each takes no more than its share. `share`: this
    worker's share in bytes, if the shares differ."""
    available = available_memory()
    if available is None:
        return Budget(DEFAULT_CPU_BYTES, RAISE_BYTES)
    whose = "" if num_workers == 1 else " for each worker" if share is None else " for this worker"
    share = available.num_bytes // num_workers if share is None else share
    left = max(0, share - num_weight_bytes - swap.num_bytes)
    num_bytes = min(DEFAULT_CPU_BYTES, int(DEFAULT_CPU_FRACTION * left))
    if num_bytes < DEFAULT_CPU_BYTES:
        logger.warning(
            "the KV cache is %s instead of %s: %s has %s of memory available%s, weights and swap space leave %s, and "
            "the default takes half of that at most; --kv-cache-memory-bytes sets it",
            in_words(num_bytes), in_words(DEFAULT_CPU_BYTES), available.where, in_words(share), whose, in_words(left),
        )  # fmt: skip
    return Budget(num_bytes, RAISE_BYTES)


def asked_bytes(config: WorkerConfig, model: ModelConfig, dtype: torch.dtype) -> tuple[Asked, ...]:
    """Returns the option that fixes the size of the KV cache, with that size in bytes. Returns () if no such option is
    set."""
    if config.num_gpu_blocks_override is not None:
        num_bytes = config.num_gpu_blocks_override * block_bytes(model, config.block_size, dtype)
        return (Asked("--num-gpu-blocks-override", num_bytes),)
    if config.kv_cache_memory_bytes is not None:
        return (Asked("--kv-cache-memory-bytes", config.kv_cache_memory_bytes),)
    return ()


def count_host_blocks(swap: SwapSpace, config: WorkerConfig, model: ModelConfig, dtype: torch.dtype) -> int:
    """Returns how many blocks fit into the swap space."""
    return swap.num_bytes // block_bytes(model, config.block_size, dtype)


def resolve_max_model_len(config: WorkerConfig, model: ModelConfig, capacity: int) -> int:
    """Returns the greatest length of a sequence in tokens: the configured one, else the smaller of the model's limit
    and `capacity`, the number of tokens that the KV cache holds. Raises ModelError if the configured length exceeds
    `capacity`."""
    if config.max_model_len is None:
        return min(config.longest(model.max_model_len), capacity)
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
    """Returns one KVPages per layer, with the layer's `scales` (None: 1). On a CPU the operating system commits a page
    of memory only when it is first written. Raises MemoryError or torch.OutOfMemoryError."""
    scales = scales or [KVScales() for _ in model.attention]
    return [
        _allocate(heads, of_layer, (num_blocks, heads.num_kv_heads, block_size), device, dtype)
        for heads, of_layer in zip(model.attention, scales, strict=True)
    ]


def _allocate(
    heads: Heads, scales: KVScales, shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype
) -> KVPages:
    keys = _zeros((*shape, heads.key_dim), device, dtype)
    if heads.is_latent:
        return KVPages(keys, keys[..., : heads.value_dim], scales.key, scales.value, is_latent=True)
    return KVPages(keys, _zeros((*shape, heads.value_dim), device, dtype), scales.key, scales.value)


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    return mapped_zeros(shape, dtype) if device.type == "cpu" else torch.zeros(shape, device=device, dtype=dtype)
