"""Measures every figure in docs/performance.md: `make bench`, or `python -m benchmarks.run startup overhead steps`.

Prints a table and stores the numbers with machine, versions and date in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import (
    batching,
    deciding,
    hit_rate,
    kv_memory,
    long_prompt,
    overhead,
    preemption,
    prefix_hit,
    quantization,
    quantized_steps,
    router,
    simulation,
    startup,
    steps,
)
from benchmarks.tree import commit

BENCHMARKS: dict[str, Callable[[], dict[str, float]]] = {
    "startup": startup.measure,
    "overhead": overhead.measure,
    "steps": steps.measure,
    "deciding": deciding.measure,
    "kv_memory": kv_memory.measure,
    "hit_rate": hit_rate.measure,
    "prefix_hit": prefix_hit.measure,
    "long_prompt": long_prompt.measure,
    "batching": batching.measure,
    "preemption": preemption.measure,
    "simulation": simulation.measure,
    "quantization": quantization.measure,
    "quantized_steps": quantized_steps.measure,
    "router": router.measure,
}
RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, str | int | None]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), "torch": version("torch")}


def provenance() -> dict[str, Any]:
    """Returns date, commit and machine, to store with a measurement."""
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "machine": machine()}


def in_words(record: Mapping[str, Any]) -> str:
    """Describes date, commit and machine in one line. `record`: must have the fields that `provenance` returns."""
    own = record["machine"]
    return f"{record['date']}, commit {record['commit']}, {own['cores']} cores of {own['cpu']}"


def keep(name: str, figures: Mapping[str, float]) -> None:
    """Prints the figures and stores them."""
    print(f"\n{name}")
    for figure, value in figures.items():
        print(f"  {figure:28} {value:10.3f}")
    store(name, figures)


def store(name: str, figures: Mapping[str, float]) -> None:
    record = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "figures": figures}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="benchmarks to run; default: all")
    for name in parser.parse_args().names or BENCHMARKS:
        keep(name, BENCHMARKS[name]())


if __name__ == "__main__":
    main()
