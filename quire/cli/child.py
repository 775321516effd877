"""Makes child processes end with their parent, on Linux."""

from __future__ import annotations

import os
import sys

# Python's start ignores SIGPIPE and SIGXFSZ. Programs would inherit that.
_LAUNCHER = """
import ctypes, os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
parent, *command = sys.argv[1:]
if os.getppid() != int(parent):  # The parent ended before the prctl call.
    sys.exit(1)
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"cannot run {command[0]}: {error}")
"""


def bound_to_parent(*command: str) -> tuple[str, ...]:
    """Wraps a command in a launcher, which only this process may start. The kernel kills the child as soon as the
    thread that started it has ended, even if SIGKILL ended it. Only Linux supports this. On other systems, a parent
    that is killed leaves its children running.

    The child is as if it had been started directly, except that Python's start adds LC_CTYPE to its environment in the
    C locale. If the program cannot be run, the child ends with status 1.

    A preexec_fn would do the same, but it runs in a fork of this process, where gRPC's threads are missing. gRPC then
    aborts the child at times: one in 37, in a process with four threads that make calls.
    """
    if sys.platform != "linux":
        return command
    return (sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command)
