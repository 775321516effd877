"""Describes the machine on which a figure was measured, and stores figures."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.gpu.figures import Figure

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def describe(device: torch.device) -> dict[str, str]:
    described = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "driver": _driver(),
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }
    return described | {name: version(name) for name in ("torch", "triton", "transformers")}


def commit() -> str:
    """Returns the source tree's commit, with a + if files differ from it. 'unknown' outside a repository."""
    try:
        revision = _output("git", "rev-parse", "--short=12", "HEAD")
        return revision + ("+" if _output("git", "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def store(path: Path, figures: Sequence[Figure], device: torch.device, commit: str, arguments: Sequence[str]) -> None:
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "machine": describe(device),
        "arguments": list(arguments),
        "figures": [figure.record() for figure in figures],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


def load(path: Path) -> list[Figure]:
    """Reads the figures that `store` wrote."""
    fields = Figure.__dataclass_fields__
    return [Figure(**{name: figure[name] for name in fields}) for figure in json.loads(path.read_text())["figures"]]


def _driver() -> str:
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.\d+[.\d]*)", Path("/proc/driver/nvidia/version").read_text())
        return found[1] if found else "unknown"
    except OSError:
        pass
    try:
        return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
