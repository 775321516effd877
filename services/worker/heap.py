"""How much memory the process has in use, as the C library counts it."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

# The members of `struct mallinfo2` in <malloc.h>.
_MEMBERS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _MEMBERS]


def heap_bytes() -> int:
    """Returns the number of bytes that are allocated with malloc, in all threads, including those that were never
    touched; 0 if the C library does not say (glibc before 2.33, others). Takes some 20 µs, and up to a millisecond if
    there are very many free pieces. Memory of another allocator, such as a preloaded jemalloc, does not count."""
    mallinfo2 = _mallinfo2()
    if mallinfo2 is None:
        return 0
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


@functools.cache
def _mallinfo2() -> Callable[[], _Mallinfo2] | None:
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _Mallinfo2
    return function
