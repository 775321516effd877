"""The paged KV cache: how many blocks fit, and one pair of page tensors per layer."""

from __future__ import annotations

import torch

from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.models.config import ModelConfig
from services.worker.ops.interface import KVPages

DEFAULT_CPU_BYTES = 1 << 30


def block_bytes(model: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return 2 * len(model.layers) * model.num_kv_heads * block_size * model.head_dim * dtype.itemsize


def count_blocks(config: WorkerConfig, model: ModelConfig, device: torch.device, dtype: torch.dtype) -> int:
    """How many blocks the configured memory holds. To be called once weights are loaded, as a GPU's budget is what they
    leave. Raises ModelError if that is not a single block."""
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    if config.kv_cache_memory_bytes is not None:
        budget = config.kv_cache_memory_bytes
    elif device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        budget = int(total * config.gpu_memory_utilization) - (total - free)
    else:
        budget = DEFAULT_CPU_BYTES
    blocks = budget // block_bytes(model, config.block_size, dtype)
    if blocks < 1:
        raise ModelError(
            f"{budget} bytes of KV cache hold no block of {config.block_size} tokens, "
            f"which takes {block_bytes(model, config.block_size, dtype)}; raise --kv-cache-memory-bytes"
        )
    return int(blocks)


def resolve_max_model_len(config: WorkerConfig, model: ModelConfig, capacity: int) -> int:
    """Tokens of the longest sequence: as configured, or what the model and `capacity` tokens of KV cache allow. Raises
    ModelError when more is configured than either allows."""
    if config.max_model_len is None:
        return min(model.max_model_len, capacity)
    if config.max_model_len > model.max_model_len:
        raise ModelError(
            f"--max-model-len is {config.max_model_len}; the model takes at most {model.max_model_len} tokens"
        )
    if config.max_model_len > capacity:
        raise ModelError(
            f"--max-model-len is {config.max_model_len}, but the KV cache holds {capacity} tokens; "
            "raise --kv-cache-memory-bytes or lower --max-model-len"
        )
    return config.max_model_len


def allocate_pages(
    model: ModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> list[KVPages]:
    """A KVPages per layer. Zeros: memory is committed by the operating system as pages are first written."""
    shape = (num_blocks, model.num_kv_heads, block_size, model.head_dim)
    return [
        KVPages(torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype))
        for _ in model.layers
    ]
