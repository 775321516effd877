"""`quire calibrate MODEL`: measures how long steps take on the device at hand, for `quire simulate`."""

from __future__ import annotations

import datetime
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from quire.simulator.calibration import Calibration, fit, kinds_of, measure
from quire.simulator.device import Device
from services.worker.config import WorkerConfig
from services.worker.engine import load_engine
from services.worker.errors import ModelError
from shared.config import option, resolve

PROG = "quire calibrate"


@dataclass(frozen=True, slots=True)
class CalibrateConfig(WorkerConfig):
    """The worker's own options, as what it can do depends on them."""

    output: str = option("device.json", "File to write.")


def main(argv: Sequence[str]) -> int:
    config = resolve(CalibrateConfig, argv, prog=PROG, description="Measures steps, for `quire simulate`.")
    console = Console(stderr=True)
    try:
        engine = load_engine(config, lambda what, _: None)
    except ModelError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    kinds = kinds_of(engine.runner)
    steps = track(measure(engine.runner, kinds), "measuring steps", len(kinds), console=console)
    fitted = fit([one for one in steps if one is not None])
    limits = engine.runner.limits
    device = Device(
        step=fitted.step,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        num_host_blocks=limits.num_host_blocks,
        swap_seconds_per_block=engine.speed.swap_per_block,
        origin=_origin(engine.model.names[0], str(engine.runner.ops.device), fitted),
    )
    try:
        device.save(Path(config.output))
    except OSError as error:
        print(f"{PROG}: {config.output}: {error.strerror}", file=sys.stderr)
        return 1
    step = fitted.step
    print(
        f"{len(fitted.measured)} kinds of step measured; a step takes {1000 * step.base:.3g} ms"
        f" + {1e6 * step.per_token:.3g} µs per token + {1e6 * step.per_sequence:.3g} µs per sequence"
        f" + {1e9 * step.per_kv_token:.3g} ns per position read + {1e9 * step.per_pair:.3g} ns per pair;\n"
        f"half of the kinds are within {fitted.median_error:.1%} of that, all within {fitted.worst_error:.0%}"
    )
    print(f"written to {config.output}; try: quire simulate --device {config.output} --poisson 2")
    return 0


def _origin(model: str, device: str, fitted: Calibration) -> dict[str, str | float]:
    return {
        "model": model,
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "median_error": fitted.median_error,
        "worst_error": fitted.worst_error,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
