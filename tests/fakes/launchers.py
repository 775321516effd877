"""Commands that arrange something in a new process and then become another command.

A preexec_fn would run in a fork of the tests' process, in which gRPC at times aborts (`quire.cli.child`).
"""

from __future__ import annotations

import sys

# Whoever runs the tests may have been started with this signal ignored, as a shell's background jobs are.
_INTERRUPTIBLE = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
_EXEC = "os.execvp(sys.argv[1], sys.argv[1:])"


def interruptible(*command: str) -> tuple[str, ...]:
    """Returns a command that becomes `command`, which SIGINT interrupts."""
    return (sys.executable, "-ISc", _INTERRUPTIBLE + _EXEC, *command)


def at_terminal(*command: str) -> tuple[str, ...]:
    """Returns a command that becomes `command`, in charge of the terminal that is its standard input, as for a login
    shell. It must be started in a session of its own."""
    return (sys.executable, "-ISc", _INTERRUPTIBLE + _TERMINAL + _EXEC, *command)
