"""The paged KV cache: number of blocks, page tensors, and copies of blocks between device and host."""

from services.worker.pages.create import create_device_page_copies
from services.worker.pages.host_memory import (
    Asked,
    SwapSpace,
    require,
    require_memory,
    resolve_swap_space,
)
from services.worker.pages.kv_cache import (
    LESS_MEMORY,
    Budget,
    allocate_pages,
    asked_bytes,
    block_bytes,
    count_blocks,
    count_host_blocks,
    default_cpu_budget,
    resolve_kv_cache_dtype,
    resolve_max_model_len,
)
from services.worker.pages.page_copies import NoPageCopies, PageCopies, PlainPageCopies

__all__ = [
    "LESS_MEMORY",
    "Asked",
    "Budget",
    "NoPageCopies",
    "PageCopies",
    "PlainPageCopies",
    "SwapSpace",
    "allocate_pages",
    "asked_bytes",
    "block_bytes",
    "count_blocks",
    "count_host_blocks",
    "create_device_page_copies",
    "default_cpu_budget",
    "require",
    "require_memory",
    "resolve_kv_cache_dtype",
    "resolve_max_model_len",
    "resolve_swap_space",
]
