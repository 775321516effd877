"""When the device begins and ends each step, by CUDA events on its stream: nothing waits to find out.

Idle time is what lies between the end of one step's work and the first kernel of the next step's model. It includes the
small copies of the next step's inputs, and whatever the device waited for: the host, the scheduler's plan, or the next
request. Gaps between the kernels of one step are not in it.
"""

from __future__ import annotations

from typing import Protocol

import torch

from services.worker.ops import timing_event
from services.worker.plan import DeviceTime

Event = torch.cuda.Event


class StepClock(Protocol):
    def begin(self) -> None:
        """The next launch is the first kernel of a step. A step that is launched again begins anew."""
        ...

    def launched(self) -> Event | None:
        """Where the step began that was launched just now; None if it ran no model."""
        ...

    def collected(self, begun: Event | None, ended: Event | None) -> DeviceTime | None:
        """Steps come in the order of their launch, once `ended` has come to pass. None where nothing was timed."""
        ...

    def reset(self) -> None:
        """What comes next is a new epoch."""
        ...


class DeviceStepClock:
    """See `StepClock`."""

    def __init__(self) -> None:
        self._begun: Event | None = None
        self._last_end: Event | None = None

    def begin(self) -> None:
        self._begun = timing_event()
        self._begun.record()

    def launched(self) -> Event | None:
        begun, self._begun = self._begun, None
        return begun

    def collected(self, begun: Event | None, ended: Event | None) -> DeviceTime | None:
        if begun is None or ended is None:
            return None  # the time since the last step that ran a model counts on
        last, self._last_end = self._last_end, ended
        idle = 0.0 if last is None else last.elapsed_time(begun) / 1e3
        # Work that is launched behind a running step begins at its end: the clock's resolution may say before it.
        return DeviceTime(max(0.0, idle), begun.elapsed_time(ended) / 1e3)

    def reset(self) -> None:
        self._begun = self._last_end = None


class NoStepClock:
    """See `StepClock`. For a CPU: it computes while the step thread waits, so `run_us` by the host's clock is the time
    that it computes."""

    def begin(self) -> None:
        pass

    def launched(self) -> Event | None:
        return None

    def collected(self, begun: Event | None, ended: Event | None) -> DeviceTime | None:
        return None

    def reset(self) -> None:
        pass
