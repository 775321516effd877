"""What the step thread delivers when a launch or a result raises, on a simulated GPU that may be lost (a sticky error).

The error of an illegal access shows at whichever call comes next: the launch of a step, or the collection of one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from services.worker.errors import DeviceLostError, PlanError
from services.worker.ops.triton.ops import TritonOps
from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.step_plan import GeneratingSequence, Rows, StepPlan, StepResult
from services.worker.service.step_thread import Outcome, Recipient, StepThread
from services.worker.startup.load import LoadedWorker
from services.worker.step.device_check import CudaDeviceCheck
from services.worker.step.model_runner import STEP_FAILED, ModelRunner
from tests.fakes.waiting import HANG_S
from tests.simulated_gpu import SimulatedGPU
from tests.unit.worker.tiny_models import make_runner, save_model
from tests.unit.worker.triton.conftest import HAS_GPU

pytestmark = pytest.mark.skipif(HAS_GPU, reason="there is a real one")
CUDA = torch.device("cuda", 0)
NO_IDS = np.zeros(0, np.uint32)
PROMPT = [5, 6, 7]


class Worker:
    """A step thread over a tiny model on a simulated GPU."""

    def __init__(self, directory: Path, gpu: SimulatedGPU) -> None:
        self.gpu, self.runner = gpu, cast(ModelRunner, None)
        self.delivered: list[Outcome] = []
        self._arrivals = threading.Semaphore(0)
        self._directory = directory
        self.recipient = Recipient(self._deliver)
        self.thread = StepThread(self._load)
        self.thread.start()
        self.thread.loaded.result(120)

    def _load(self) -> LoadedWorker:
        self.gpu.join_thread()
        self.runner = make_runner(
            self._directory, num_blocks=8, max_num_seqs=2, max_num_batched_tokens=8, ops=TritonOps(CUDA, torch.float32)
        )
        return cast(LoadedWorker, SimpleNamespace(runner=self.runner))

    def _deliver(self, outcome: Outcome) -> None:
        self.delivered.append(outcome)
        self._arrivals.release()

    def plan(self, step_id: int, *new: int, decode: int | None = None) -> None:
        """A step that computes the prompts of some new sequences, or a token of one that is there."""
        sequences = tuple(
            GeneratingSequence(
                wire_id=wire_id, slot=wire_id - 1, token_ids=np.array(PROMPT, np.uint32), num_prompt_tokens=len(PROMPT),
                num_computed_tokens=0, block_ids=np.array([wire_id], np.uint32),
                sampling=SamplingParams(temperature=0.0), choice_index=0,
            )
            for wire_id in new
        )  # fmt: skip
        ids = np.array([*new] if decode is None else [decode], np.uint32)
        count = 1 if decode is not None else len(PROMPT)
        computed = np.full(len(ids), 0 if decode is None else len(PROMPT), np.uint32)
        scheduled, offsets = np.full(len(ids), count, np.uint32), np.zeros(len(ids) + 1, np.uint32)
        rows = Rows(ids, ids - 1, scheduled, computed, offsets, NO_IDS)
        self.thread.submit(self.recipient, StepPlan(1, step_id, NO_IDS, sequences, rows))

    def next(self) -> Outcome:
        assert self._arrivals.acquire(timeout=HANG_S)
        return self.delivered[-1]

    def death(self) -> BaseException | None:
        """Once the thread has ended."""
        return self.thread.ended.exception(120)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    save_model(tmp_path, "Llama", num_hidden_layers=1)
    with SimulatedGPU().running() as gpu:
        worker = Worker(tmp_path, gpu)
        yield worker
        worker.thread.stop(120)


def test_a_device_that_is_lost_within_a_launch_ends_the_thread_before_anything_is_delivered(worker: Worker) -> None:
    worker.plan(1, 1)
    assert isinstance(worker.next(), StepResult)
    worker.gpu.die_in(2)  # of the next step's many launches
    worker.plan(2, 2)
    died_of = worker.death()
    assert isinstance(died_of, DeviceLostError)
    assert str(died_of).startswith("cuda:0 is lost: CUDA error: an illegal memory access was encountered; the first ")
    assert [outcome.step_id for outcome in worker.delivered if isinstance(outcome, StepResult)] == [1]


@pytest.mark.parametrize("asked", ["finished", "collect"])
def test_a_device_that_is_lost_behind_a_launch_ends_the_thread_where_results_are_collected(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """The launch succeeds: the error shows as the thread asks whether the step has ended, or waits for it; neither that
    step nor the one launched behind it is delivered."""
    runner, launch = worker.runner, worker.runner.launch
    launched = []

    def launch_and_lose(plan: StepPlan, received_at: float) -> Any:
        step = launch(plan, received_at)
        launched.append(step.error)
        if plan.step_id == 2:
            worker.gpu.die_in(0)
            torch.ones(1, device=CUDA) + 1
        return step

    monkeypatch.setattr(runner, "launch", launch_and_lose)
    if asked == "collect":
        monkeypatch.setattr(runner, "finished", lambda step: True)
    worker.plan(1, 1)
    assert isinstance(worker.next(), StepResult)
    worker.plan(2, decode=1)
    assert isinstance(worker.death(), DeviceLostError)
    assert launched == [None, None]
    assert [outcome.step_id for outcome in worker.delivered if isinstance(outcome, StepResult)] == [1]


def test_an_error_that_the_device_survives_fails_its_step_alone(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, failures = worker.runner._forward.run, [torch.AcceleratorError("CUDA error: invalid configuration")]

    def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return forward(*arguments)

    monkeypatch.setattr(worker.runner._forward, "run", fail_once)
    worker.plan(1, 1)
    failed = worker.next()
    assert isinstance(failed, StepResult)
    assert [(error.wire_id, error.message) for error in failed.errors] == [(1, STEP_FAILED)]
    worker.plan(2, 2)
    computed = worker.next()
    assert isinstance(computed, StepResult)
    assert (computed.wire_ids.tolist(), computed.errors) == ([2], ())


@pytest.mark.parametrize("where", ["launch", "collect", "finished"])
def test_an_error_that_the_device_survives_ends_the_epoch_at_most(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    failures = [RuntimeError("broken")] * (2 if where == "finished" else 1)

    def fail(*_: object) -> Any:
        raise failures.pop()

    with monkeypatch.context() as patched:
        patched.setattr(worker.runner, where, fail)
        if where == "finished":
            patched.setattr(worker.runner, "collect", fail)
        worker.plan(1, 1)
        assert isinstance(worker.next(), RuntimeError)
    assert worker.recipient.closed
    worker.thread.reset().result(120)
    worker.recipient = Recipient(worker._deliver)
    worker.plan(1, 1)
    assert isinstance(worker.next(), StepResult)


def test_neither_a_broken_plan_nor_full_memory_asks_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", asked.append)
    check = CudaDeviceCheck(CUDA)
    check.after(PlanError("a slot is another's"))
    check.after(torch.OutOfMemoryError("CUDA out of memory."))
    assert not asked
    check.after(RuntimeError("anything else"))
    assert asked == [CUDA]
