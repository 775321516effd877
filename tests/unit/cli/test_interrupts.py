"""Ctrl-C ends a wait for the server, whenever it comes."""

from __future__ import annotations

import subprocess
import sys

from tests.fakes.waiting import HANG_S

# The signal reaches another thread. For the main one, this is as if it had come just before its system call.
PROGRAM = """
import signal, socket, threading
from quire.cli.chat import interruptible

ours, theirs = socket.socketpair()
begins = threading.Event()

def interrupt():
    begins.wait()
    signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=interrupt, daemon=True).start()
try:
    with interruptible():
        begins.set()
        ours.recv(1)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_just_before_a_wait_ends_it() -> None:
    command = [sys.executable, "-c", PROGRAM]
    assert subprocess.run(command, capture_output=True, timeout=HANG_S, check=True).stdout == b"interrupted\n"
