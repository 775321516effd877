"""Makes child processes end with their parent, on Linux."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None]:
    """Returns a preexec_fn that makes the kernel kill the child as soon as the thread that started the child has ended,
    even if SIGKILL ended it. Only Linux supports this. On other systems, a parent that is killed leaves its children
    running."""
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # The parent ended before the prctl call.
            os._exit(1)

    return arrange
