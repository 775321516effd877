"""What a soak reads of processes, against processes whose figures are known."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from benchmarks.soak.figures import Identity, alive, figures, identities
from tests.fakes.waiting import wait_until


def test_descriptors_sockets_and_children_are_counted() -> None:
    before = figures(os.getpid())
    with socket.socket(), socket.socket(), Path(__file__).open():
        after = figures(os.getpid())
    assert (after.descriptors - before.descriptors, after.sockets - before.sockets) == (3, 2)
    assert after.resident_bytes > 1_000_000
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert figures(os.getpid()).processes == before.processes + 1
        child.communicate()
    assert figures(os.getpid()).processes == before.processes


def test_a_process_is_alive_until_it_ends_and_another_with_its_id_is_none() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        (found,) = identities([child.pid])
        assert alive([found, Identity(found.pid, found.start + 1)]) == {found}
        assert child.stdin is not None
        child.stdin.close()
        # Nobody has waited for it yet.
        wait_until(lambda: not alive([found]))
        assert figures(child.pid).resident_bytes == 0
    assert alive([found]) == set()
    assert identities([child.pid]) == set()
