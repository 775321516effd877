"""The paged KV cache: how many blocks fit, and one pair of page tensors per layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.models.config import ModelConfig
from services.worker.ops.interface import KVPages, Ops

DEFAULT_CPU_BYTES = 1 << 30


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


def count_host_blocks(config: WorkerConfig, model: ModelConfig, dtype: torch.dtype) -> int:
    """How many blocks the swap space holds."""
    return int(config.swap_space * 2**30) // block_bytes(model, config.block_size, dtype)


class HostPages:
    """Slots in host memory, each for one block of every layer; pinned where the device is a GPU.

    Copies run on the device's compute stream, in the order of the calls, and the host itself never looks into the
    slots: so nothing has to wait for a copy to end.
    """

    def __init__(self, pages: Sequence[KVPages], num_slots: int) -> None:
        self._tensors = [tensor for layer in pages for tensor in (layer.keys, layer.values)]
        first = self._tensors[0]
        self._is_cuda = first.device.type == "cuda"
        # [num_slots, 2 · layers, num_kv_heads, block_size, head_dim]
        shape = (num_slots, len(self._tensors), *first.shape[1:])
        self._slots = torch.zeros(shape, dtype=first.dtype, pin_memory=self._is_cuda and num_slots > 0)
        self.num_slots = num_slots

    def save(self, blocks: Tensor, slots: Tensor) -> None:
        """Copies blocks to slots, int64 [n] each, on the host."""
        where = blocks.to(self._tensors[0].device)
        pages = torch.stack([tensor[where] for tensor in self._tensors], dim=1)
        if not self._is_cuda:
            self._slots[slots] = pages
            return
        for page, slot in zip(pages, slots.tolist(), strict=True):
            self._slots[slot].copy_(page, non_blocking=True)

    def load(self, slots: Tensor, blocks: Tensor) -> None:
        """Copies slots to blocks, int64 [n] each, on the host."""
        device = self._tensors[0].device
        if self._is_cuda:
            pages = torch.stack([self._slots[slot].to(device, non_blocking=True) for slot in slots.tolist()])
        else:
            pages = self._slots[slots]
        where = blocks.to(device)
        for index, tensor in enumerate(self._tensors):
            tensor[where] = pages[:, index]


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
