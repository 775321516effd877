"""The kernels' own threads: whoever calls gets the same bits, and who does not compute burns nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from services.worker.ops.cpu.ops import CPUOps
from tests.fakes.waiting import HANG_S, wait_until


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_callers_at_the_same_time_get_what_each_would_alone(cpu: CPUOps, generator: torch.Generator) -> None:
    """One of them gets the helpers, the others work alone."""
    linear = cpu.linear(torch.randn(700, 500, generator=generator))
    inputs = [torch.randn(40, 500, generator=generator) for _ in range(4)]
    alone = [linear(x) for x in inputs]

    def work(index: int) -> bool:
        torch.set_num_threads(3)
        return all(torch.equal(linear(inputs[index]), alone[index]) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_helpers_sleep_once_nothing_comes_for_a_while(cpu: CPUOps, generator: torch.Generator) -> None:
    linear, x = cpu.linear(torch.randn(700, 500, generator=generator)), torch.randn(40, 500, generator=generator)
    linear(x)
    assert len(helpers()) >= 2
    wait_until(lambda: set(helpers().values()) == {"S"})
    assert linear(x).isfinite().all()


def helpers() -> dict[str, str]:
    """Their states, as Linux tells them: S is asleep, R is computing or looking for work. No other thread of Python's
    blocks every signal."""
    found = {}
    for folder in Path("/proc/self/task").iterdir():
        try:
            status = (folder / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread, of a pool that another test used, has just ended
        lines = dict(line.split(":\t", 1) for line in status.splitlines())
        if int(lines["SigBlk"], 16).bit_count() > 50:
            found[folder.name] = lines["State"][0]
    return found


def test_a_forked_process_has_helpers_of_its_own() -> None:
    code = """
import os, torch
from services.worker.ops.cpu.ops import CPUOps
torch.set_num_threads(2)
ops = CPUOps()
linear, x = ops.linear(torch.randn(700, 500)), torch.randn(40, 500)
expected = linear(x)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(linear(x), expected) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_S)
