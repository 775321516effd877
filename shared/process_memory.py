"""Memory of this process, as Linux counts it."""

from __future__ import annotations

import resource


def address_space() -> int:
    """Returns the number of bytes that this process has mapped. RLIMIT_AS limits this number."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()
