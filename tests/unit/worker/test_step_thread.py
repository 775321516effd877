"""When the step thread launches, and when it collects, if the device works on by itself."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from services.worker.plan.step_plan import Rows, StepPlan, StepResult
from services.worker.service.step_thread import Outcome, Recipient, StepThread
from services.worker.startup.load import LoadedWorker
from services.worker.step.device_check import NoDeviceCheck
from tests.fakes.waiting import HANG_S, wait_until

NO_IDS = np.zeros(0, np.uint32)


class FakeRunner:
    """Steps end when the test says so."""

    num_sequences = 0

    def __init__(self) -> None:
        self.launched: list[int] = []
        self.ended: dict[int, threading.Event] = {}
        self.second = threading.Event()

    def launch(self, plan: StepPlan, received_at: float) -> Any:
        self.launched.append(plan.step_id)
        if len(self.launched) == 2:
            self.second.set()
        return SimpleNamespace(plan=plan, error=None, num_sequences=0)

    def finished(self, step: Any) -> bool:
        return self.ended[step.plan.step_id].is_set()

    def collect(self, step: Any) -> StepResult:
        assert self.ended[step.plan.step_id].wait(HANG_S)
        return StepResult(step.plan.step_id, NO_IDS, NO_IDS, None, (), 0, 0, 0)

    device = SimpleNamespace(check=NoDeviceCheck(), is_synchronous=False)

    def close(self) -> None: ...


def plan(step_id: int) -> StepPlan:
    return StepPlan(1, step_id, NO_IDS, (), Rows(NO_IDS, NO_IDS, NO_IDS, NO_IDS, np.zeros(1, np.uint32), NO_IDS))


def test_a_plan_that_comes_while_a_step_runs_is_launched_behind_it() -> None:
    """Also when the thread had nothing left to launch; and results come as steps end, without another plan."""
    runner = FakeRunner()
    runner.ended = {1: threading.Event(), 2: threading.Event()}
    delivered: list[Outcome] = []
    first, last = threading.Event(), threading.Event()

    def deliver(outcome: Outcome) -> None:
        delivered.append(outcome)
        (first if len(delivered) == 1 else last).set()

    thread = StepThread(lambda: cast(LoadedWorker, SimpleNamespace(runner=runner)))
    thread.start()
    recipient = Recipient(deliver)
    thread.submit(recipient, plan(1))
    wait_until(lambda: thread.busy_for() > 0.0)  # launched, and waited for
    thread.submit(recipient, plan(2))
    assert runner.second.wait(HANG_S), "the thread waits for the first step instead of launching the second"
    assert not delivered
    runner.ended[1].set()
    assert first.wait(HANG_S)
    runner.ended[2].set()
    assert last.wait(HANG_S)
    assert [outcome.step_id for outcome in delivered if isinstance(outcome, StepResult)] == [1, 2]
    thread.stop(HANG_S)
    assert thread.ended.done()
