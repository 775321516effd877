"""Makes a worker follow a test's script. Python runs this file at the start of every process that has it on its path.

At SIGUSR1, a worker reads the script. It then stops itself (SIGSTOP), loses its device or runs out of memory at exact
points of its work, independently of its speed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

REASON = "CUDA error: an illegal memory access was encountered"


def take_script(*_: object) -> None:
    """Reads the script, and deletes the file to tell the test that the worker has the script."""
    path = Path(os.environ["QUIRE_TEST_WORKER_SCRIPT"])
    follow(json.loads(path.read_text()))
    path.unlink()


def follow(points: list[dict[str, Any]]) -> None:
    """Patches the model runner so that it acts at each point once, in this order."""
    from torch import OutOfMemoryError

    from services.worker.errors import DeviceLostError
    from services.worker.plan.step_plan import GeneratingSequence
    from services.worker.step.device_check import NoDeviceCheck
    from services.worker.step.model_runner import ModelRunner

    launch, run, collect, reset = ModelRunner.launch, ModelRunner._run, ModelRunner.collect, ModelRunner.reset
    num_steps = 0
    # Number of output tokens of each sequence in the worker.
    num_tokens: Counter[int] = Counter()

    def is_reached(point: dict[str, Any]) -> bool:
        num_far = sum(count >= point["num_tokens"] for count in num_tokens.values())
        return num_steps >= int(point["num_steps"]) and num_far >= int(point["num_sequences"])

    def launch_counted(runner: Any, plan: Any, received_at: float) -> Any:
        for wire_id in plan.released_wire_ids.tolist():
            num_tokens.pop(wire_id, None)
        return launch(runner, plan, received_at)

    def run_counted(runner: Any, batch: Any) -> Any:
        nonlocal num_steps
        num_steps += bool(len(batch.slots))
        if points and points[0]["action"] == "lose the device" and is_reached(points[0]):
            raise RuntimeError(REASON)
        return run(runner, batch)

    def collect_counted(runner: Any, step: Any) -> Any:
        nonlocal num_steps
        result = collect(runner, step)
        num_tokens.update(result.wire_ids.tolist())
        if points and points[0]["action"] == "stop" and is_reached(points[0]):
            del points[0]
            os.kill(os.getpid(), signal.SIGSTOP)
            num_steps = 0
        return result

    def reset_counted(runner: Any) -> None:
        num_tokens.clear()
        reset(runner)

    def is_lost(_: object, error: Exception) -> None:
        raise DeviceLostError(f"the device is lost: {error}")

    def is_out_of_memory(*_: object) -> None:
        raise OutOfMemoryError("the script of the test")

    if any(point["action"] == "run out of memory" for point in points):
        GeneratingSequence.admit = is_out_of_memory  # type: ignore[method-assign, assignment]
    ModelRunner.launch = launch_counted  # type: ignore[assignment]
    ModelRunner._run = run_counted  # type: ignore[assignment]
    ModelRunner.collect = collect_counted  # type: ignore[assignment]
    ModelRunner.reset = reset_counted  # type: ignore[assignment]
    if any(point["action"] == "lose the device" for point in points):
        NoDeviceCheck.after = is_lost  # type: ignore[method-assign, assignment]


if "worker" in sys.orig_argv:
    signal.signal(signal.SIGUSR1, take_script)
