"""What the device can do: bytes per second read and copied, and operations per second of its matrix units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.gpu.bandwidth import BLOCK, read
from benchmarks.gpu.clock import Clock

# Read and written at once by a copy.
NUM_BYTES = 8 << 30
MATRIX_SIZE = 8192
RATES = ("bf16", "fp8", "int8")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes per second, and operations per second by the operands' type; types that the device lacks are absent."""

    read: float
    copy: float
    rates: dict[str, float]


def measure_ceilings(device: torch.device, clock: Clock, *, repeats: int = 10, dry_run: bool = False) -> Ceilings:
    """The best of the repeats, on random data: zeros cost less power, and so run faster."""
    num_bytes, size = (4 * BLOCK * 2, 64) if dry_run else (NUM_BYTES, MATRIX_SIZE)
    processors = 1 if dry_run else torch.cuda.get_device_properties(device).multi_processor_count
    ceilings = Ceilings(*_bandwidths(device, clock, num_bytes, processors, repeats), {})
    for name in RATES:
        try:
            product = _product(name, size, device)
            ceilings.rates[name] = 2 * size**3 / min(clock.each(product, repeats))
        except RuntimeError as error:
            print(f"no matrix rate in {name}: {str(error).splitlines()[0]}")
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the worker counts what is free
    return ceilings


def _bandwidths(
    device: torch.device, clock: Clock, num_bytes: int, processors: int, repeats: int
) -> tuple[float, float]:
    words = torch.randint(-(2**31), 2**31, (num_bytes // 4,), dtype=torch.int32, device=device)
    half = words.numel() // 2
    copied = clock.each(lambda: words[:half].copy_(words[half:]), repeats)
    readings = clock.each(lambda: read(words, processors), repeats) + clock.each(lambda: words.sum(), repeats)
    return num_bytes / min(readings), num_bytes / min(copied)


def _product(name: str, size: int, device: torch.device) -> Callable[[], Tensor]:
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    if name == "bf16":
        return lambda: a @ b.t()
    if name == "int8":
        x, w = ((t * 40).clamp(-127, 127).to(torch.int8) for t in (a, b))
        return lambda: torch._int_mm(x, w.t())
    one, on_gpu = torch.ones((), device=device), device.type == "cuda"
    x, w = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    return lambda: torch._scaled_mm(x, w.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=on_gpu)
