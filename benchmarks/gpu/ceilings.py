"""The part that measures the device's ceilings: `python -m benchmarks.gpu ceilings`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.roofline import RATES


def measure(bench: Bench) -> Iterator[Figure]:
    ceilings = bench.ceilings
    yield Figure("memory read", ceilings.read / 1e9, "GB/s")
    yield Figure("memory copied, bytes read and written", ceilings.copy / 1e9, "GB/s")
    for name in RATES:
        rate = ceilings.rates.get(name)
        yield Figure(f"matrix product in {name}", rate and rate / 1e12, "TFLOP/s", note="" if rate else "not supported")
