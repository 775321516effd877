"""A scheduler whose options its worker cannot follow stops with a sentence."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from services.scheduler.config import SchedulerConfig
from services.scheduler.worker_groups.claimer import Claimer
from services.scheduler.worker_groups.fleet import Fleet
from services.scheduler.worker_groups.worker_group import UnusableWorkerError
from shared.config import ConfigError
from shared.discovery import StaticSource
from tests.fakes.fake_model import FakeModel
from tests.fakes.fake_worker import FakeWorker, start_fake_worker
from tests.fakes.waiting import HANG_S

NO_SWAP = "--preemption-mode is swap, but the worker has no swap space; set --swap-space, or use auto"


async def problem(tmp_path: Path, config: SchedulerConfig, model: FakeModel) -> str:
    """The error with which the scheduler's worker group ends."""
    address = f"unix:{tmp_path}/w"
    server = await start_fake_worker(FakeWorker(lambda: model), address)
    fleet = Fleet("scheduler-test", config)
    try:
        async with asyncio.timeout(HANG_S):
            await Claimer(fleet, StaticSource([address])).run()
    except UnusableWorkerError as error:
        return str(error)
    finally:
        await server.stop(0)
    raise AssertionError("the worker group ended without a reason")


async def test_swapping_needs_swap_space(tmp_path: Path) -> None:
    assert await problem(tmp_path, SchedulerConfig(preemption_mode="swap"), FakeModel()) == NO_SWAP


async def test_whole_prompts_need_steps_that_hold_them(tmp_path: Path) -> None:
    told = await problem(tmp_path, SchedulerConfig(enable_chunked_prefill=False), FakeModel(max_num_batched_tokens=64))

    assert "a sequence can have" in told
    assert told.endswith("and a step at most 64; raise --max-num-batched-tokens or lower --max-model-len")


async def test_the_process_ends_with_the_sentence(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/w"
    server = await start_fake_worker(FakeWorker(FakeModel), address)
    command = ["scheduler", "--worker", address, "--listen", f"unix:{tmp_path}/s", "--preemption-mode", "swap"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "quire", *command, stderr=subprocess.PIPE
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), HANG_S)
    finally:
        await server.stop(0)
    assert process.returncode == 1
    assert errors.decode().splitlines()[-1] == f"quire scheduler: {NO_SWAP}"


def test_several_steps_per_plan_are_refused_with_the_reason() -> None:
    assert SchedulerConfig(num_scheduler_steps=1)
    with pytest.raises(ConfigError, match=r"--num-scheduler-steps is 8: use 1; .*--run-ahead"):
        SchedulerConfig(num_scheduler_steps=8)
