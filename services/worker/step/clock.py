"""Measures when the device begins and ends each step, with CUDA events on the device's stream. The host never waits for
an event.

Idle time lies between the end of one step's work and the first kernel of the next step's model. It includes the small
copies of the next step's inputs, and all time that the device waits for the host, the scheduler's plan or the next
request. It does not include gaps between the kernels of one step.
"""

from __future__ import annotations

from typing import Protocol

import torch

from services.worker.plan import DeviceTime
from services.worker.transfers import timing_event

Event = torch.cuda.Event


class StepClock(Protocol):
    def begin(self) -> None:
        """Marks the start of a step, just before its first kernel is launched. Call it again if the step is retried."""
        ...

    def launched(self) -> Event | None:
        """Returns the start event of the step that was just launched; None if it ran no model."""
        ...

    def collected(self, begun: Event | None, ended: Event | None) -> DeviceTime | None:
        """Returns how long the device was busy with a step, from event `begun` to event `ended`, and how long it was
        idle before; None if either event is None. Call it in launch order, after `ended` has occurred."""
        ...

    def reset(self) -> None:
        """Starts a new epoch."""
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
            return None  # idle time keeps counting from the end of the last step that ran a model
        last, self._last_end = self._last_end, ended
        idle = 0.0 if last is None else last.elapsed_time(begun) / 1e3
        # A step that is launched while another step runs begins when that step ends. So the idle time before it is 0,
        # or negative by rounding.
        return DeviceTime(max(0.0, idle), begun.elapsed_time(ended) / 1e3)

    def reset(self) -> None:
        self._begun = self._last_end = None


class NoStepClock:
    """See `StepClock`. Measures nothing, because a CPU needs no clock of its own: the step thread waits for each step's
    computation, so `run_us`, measured by the host's clock, is the compute time."""

    def begin(self) -> None:
        pass

    def launched(self) -> Event | None:
        return None

    def collected(self, begun: Event | None, ended: Event | None) -> DeviceTime | None:
        return None

    def reset(self) -> None:
        pass
