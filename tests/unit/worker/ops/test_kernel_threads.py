"""The kernels' own threads: whoever calls gets the same bits, and who does not compute burns nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from services.worker.ops.cpu.ops import CPUOps


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
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
    assert linear(x).isfinite().all()


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
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
