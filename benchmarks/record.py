"""Keeps what was measured, with machine, commit and date, in benchmarks/results/."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.tree import commit

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, str | int | None]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), "torch": version("torch")}


def provenance() -> dict[str, Any]:
    """Date, commit and machine, for the record of a measurement."""
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "machine": machine()}


def in_words(record: Mapping[str, Any]) -> str:
    """`record`: with what `provenance` returns in it."""
    own = record["machine"]
    return f"{record['date']}, commit {record['commit']}, {own['cores']} cores of {own['cpu']}"


def keep(name: str, figures: Mapping[str, float]) -> None:
    """Prints the figures and stores them."""
    print(f"\n{name}")
    for figure, value in figures.items():
        print(f"  {figure:28} {value:10.3f}")
    store(name, figures)


def store(name: str, figures: Mapping[str, float]) -> None:
    record = provenance() | {"figures": figures}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
