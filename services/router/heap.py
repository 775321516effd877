"""Settings of the C library's memory allocator."""

from __future__ import annotations

import ctypes

# Parameters of mallopt, from <malloc.h>.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
# Size from which a block gets a mapping of its own. glibc's value rises to 32 MiB when such blocks are freed.
_MAPPED_BYTES = 1 << 20


def settle_heap() -> None:
    """Lets all threads share one pool of memory, and maps each large block separately, so that its memory returns to
    the system when it is freed. Call it before any thread starts. Without this call, each thread has a pool, and a few
    small objects that outlive a large request keep most of its memory there. Without effect on C libraries other than
    glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
