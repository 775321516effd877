"""What a soak reads of processes, against processes whose figures are known."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.soak.figures import Figures, Identity, alive, figures, identities
from tests.fakes.waiting import wait_until

# Holds so many sockets, files and children, until its input ends.
HOLDER = """
import socket, subprocess, sys
sockets, files, children = map(int, sys.argv[1:])
held = [socket.socket() for _ in range(sockets)], [open(sys.executable) for _ in range(files)]
started = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(children)]
print("ready", flush=True)
input()
"""


def held_by(sockets: int, files: int, children: int) -> Figures:
    command = [sys.executable, "-c", HOLDER, *map(str, (sockets, files, children))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        found = figures(holder.pid)
        holder.communicate()
    return found


def test_descriptors_and_sockets_are_counted() -> None:
    nothing, some = held_by(0, 0, 0), held_by(2, 3, 0)
    assert (some.descriptors - nothing.descriptors, some.sockets - nothing.sockets) == (5, 2)
    assert (nothing.processes, nothing.threads) == (1, 1)
    assert nothing.resident_bytes > 1_000_000


def test_children_are_counted_with_what_they_hold() -> None:
    alone, parent = held_by(0, 0, 0), held_by(0, 0, 2)
    assert (parent.processes, parent.threads) == (3, 3)
    # Its own end of each child's input, and each child's three.
    assert parent.descriptors >= alone.descriptors + 8


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
