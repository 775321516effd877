"""The parts that run steps on one kind of device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.worker.models import Decoder
from services.worker.ops import KVPages, Ops
from services.worker.pages import PageCopies
from services.worker.plan import Limits
from services.worker.sampling import Sampler
from services.worker.step.clock import StepClock
from services.worker.step.device_check import DeviceCheck
from services.worker.step.forward_pass import ForwardPass


@dataclass(frozen=True, slots=True)
class Device:
    """The parts of a worker that differ between kinds of devices. `startup/device.py` assembles them once."""

    ops: Ops
    check: DeviceCheck
    create_clock: Callable[[], StepClock]
    create_forward_pass: Callable[[Decoder, Ops, Sequence[KVPages], Limits, StepClock], ForwardPass]
    create_sampler: Callable[[Ops, int, int], Sampler]  # takes the number of sequence slots and the vocabulary size
    create_page_copies: Callable[[Sequence[KVPages], int], PageCopies]  # takes the number of blocks in host memory
    records_graphs: bool  # whether decode-only steps can be recorded and replayed
    is_synchronous: bool  # whether a launch returns only after its work is done
