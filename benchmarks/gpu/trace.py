"""Records with torch's profiler which kernels ran on the device, and when."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# Patterns for kernels' names: ours, cuBLAS's and CUTLASS's, and torch's. The first match decides. Products come before
# sampling, because CUTLASS's long names contain words such as "collective".
_GROUPS = (
    ("attention", r"decode_attention|ragged_attention|flash|fmha|sdpa"),
    ("norms", r"rms_norm"),
    ("rope and KV write", r"rope"),
    ("activation", r"activation"),
    (
        "products",
        r"gemm|gemv|matmul|nvjet|cutlass|cublas|splitk|split_k|xmma|linear|aten::mm|addmm|scaled_mm|_int_mm|bmm|"
        r"eight_bit|four_bit|quantize|experts_kernel|add_choices|"
        r"tensor_core_kernel|dequantize",
    ),
    (
        "sampling",
        r"shape_kernel|pivots|brackets|collect|threshold|draw|finish|top_tiles|top_rows|gumbel|softmax|argmax",
    ),
    ("pooling", r"segments"),
    ("copies and fills", r"memcpy|memset|copy|fill|slot_mapping|index|gather|embedding"),
)
GROUPS = (*(name for name, _ in _GROUPS), "other")


@dataclass(frozen=True, slots=True)
class Activity:
    """One run of a kernel, or a copy, in microseconds of the profiler's clock."""

    name: str
    start: float
    end: float


def trace(work: Callable[[], object], *, on_gpu: bool) -> list[Activity]:
    """Runs `work` and returns its kernels in the order of their starts. Without a GPU, returns torch's operations."""
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        work()
        if on_gpu:
            torch.cuda.synchronize()
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    found = [
        Activity(event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == wanted and not event.is_user_annotation and (on_gpu or event.cpu_parent is None)
    ]
    return sorted(found, key=lambda activity: activity.start)


def group_of(name: str, products: Collection[str] = ()) -> str:
    """Returns the group of a kernel. `products`: names of kernels that compute products, see `product_names.py`."""
    if name in products:
        return "products"
    return next((group for group, pattern in _GROUPS if re.search(pattern, name, re.IGNORECASE)), "other")


def gaps(activities: Sequence[Activity]) -> list[float]:
    """Returns the lengths of the gaps in which no kernel ran, in microseconds."""
    if not activities:
        return []
    found, busy_until = [], activities[0].end
    for activity in activities[1:]:
        if activity.start > busy_until:
            found.append(activity.start - busy_until)
        busy_until = max(busy_until, activity.end)
    return found


def span(activities: Sequence[Activity]) -> float:
    """Returns the microseconds from the first start to the last end."""
    return max((activity.end for activity in activities), default=0.0) - (activities[0].start if activities else 0.0)
