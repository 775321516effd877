"""Python runs this first in every process that finds it. After SIGUSR1 a worker loses its device within some steps: a
step raises, and so does the question whether the device still answers."""

from __future__ import annotations

import signal
import sys
from typing import Any

STEPS = 20
REASON = "CUDA error: an illegal memory access was encountered"


def lose_device(*_: object) -> None:
    from services.worker.device_check import NoDeviceCheck
    from services.worker.errors import DeviceLostError
    from services.worker.model_runner import ModelRunner

    run, steps = ModelRunner._run, []

    def fail(runner: ModelRunner, batch: Any) -> Any:
        steps.append(batch)
        if len(steps) > STEPS:
            raise RuntimeError(REASON)
        return run(runner, batch)

    def is_lost(_: object, error: Exception) -> None:
        raise DeviceLostError(f"the device is lost: {error}")

    ModelRunner._run = fail  # type: ignore[method-assign, assignment]
    NoDeviceCheck.after = is_lost  # type: ignore[method-assign, assignment]


if "worker" in sys.orig_argv:
    signal.signal(signal.SIGUSR1, lose_device)
