"""What ran on the device and when, from torch's profiler."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# By parts of kernels' names, the first that matches: ours, cuBLAS's and CUTLASS's, torch's own.
_GROUPS = (
    ("attention", r"decode_attention|combine_splits|ragged_attention|flash|fmha"),
    ("norms", r"rms_norm"),
    ("rope and KV write", r"rope"),
    ("activation", r"gated_kernel"),
    (
        "sampling",
        r"shape_kernel|pivots|brackets|collect|threshold|draw|finish|top_tiles|top_rows|gumbel|softmax|argmax",
    ),
    (
        "products",
        r"gemm|matmul|nvjet|cutlass|cublas|splitk|xmma|linear|aten::mm|addmm|eight_bit|four_bit|join_splits|quantize",
    ),
    ("pooling", r"segments"),
    ("copies and fills", r"memcpy|memset|copy|fill|slot_mapping|index|gather|embedding"),
)
GROUPS = (*(name for name, _ in _GROUPS), "other")


@dataclass(frozen=True, slots=True)
class Activity:
    """A kernel's run or a copy, in microseconds of the profiler's clock."""

    name: str
    start: float
    end: float


def trace(work: Callable[[], object], device: torch.device) -> list[Activity]:
    """In the order in which they began. On a CPU, torch's operations stand for kernels."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        work()
        if on_gpu:
            torch.cuda.synchronize(device)
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    found = [
        Activity(event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == wanted and not event.is_user_annotation and (on_gpu or event.cpu_parent is None)
    ]
    return sorted(found, key=lambda activity: activity.start)


def group_of(name: str) -> str:
    return next((group for group, pattern in _GROUPS if re.search(pattern, name, re.IGNORECASE)), "other")


def gaps(activities: Sequence[Activity]) -> list[float]:
    """Microseconds during which nothing ran, from the first beginning to the last end."""
    found, busy_until = [], activities[0].end
    for activity in activities[1:]:
        if activity.start > busy_until:
            found.append(activity.start - busy_until)
        busy_until = max(busy_until, activity.end)
    return found


def span(activities: Sequence[Activity]) -> float:
    """Microseconds from the first beginning to the last end."""
    return max(activity.end for activity in activities) - activities[0].start
