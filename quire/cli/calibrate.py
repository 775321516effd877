"""`quire calibrate MODEL`: measures how long steps take on this host's device, for `quire simulate`."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import platform
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from quire.cli.part import Part, PartSpec
from quire.simulator.calibration import Calibration, Measured, Planner, fit_that_is_trusted, kinds_of, measure
from quire.simulator.device import Device
from services.scheduler.converters import WorkerHello
from services.scheduler.worker_groups import Claimant, WorkerLink, WorkerLostError
from services.worker.config import WorkerConfig
from shared.config import option, resolve, to_argv
from shared.python_child import child_environment, python_command
from shared.status import Status

PROG = "quire calibrate"


@dataclass(frozen=True, slots=True)
class CalibrateConfig(WorkerConfig):
    """The worker's options, on which its speed and memory depend, and the output file."""

    output: str = option("device.json", "File to write the measurements to.")


class WorkerFailedError(Exception):
    """A worker that did not start. The message gives the reason."""


def main(argv: Sequence[str]) -> int:
    config = resolve(
        CalibrateConfig,
        argv,
        prog=PROG,
        description="Measures how long steps take on this device, for `quire simulate`.",
    )
    try:
        device, fitted = asyncio.run(_calibrate(config))
        device.save(Path(config.output))
    except (WorkerFailedError, WorkerLostError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{PROG}: {config.output}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    step = device.step
    print(
        f"{len(fitted.measured)} kinds of step measured; a step takes {1000 * step.base:.3g} ms"
        f" + {1e6 * step.per_token:.3g} µs per token + {1e6 * step.per_sequence:.3g} µs per sequence"
        f" + {1e9 * step.per_kv_token:.3g} ns per position read + {1e9 * step.per_pair:.3g} ns per pair;\n"
        f"half of the kinds are within {fitted.median_error:.1%} of that, all within {fitted.worst_error:.0%}"
    )
    if device.distrust:
        print(f"{PROG}: warning: {device.distrust}", file=sys.stderr)
    print(f"written to {config.output}; try: quire simulate --device {config.output} --poisson 2")
    return 0


async def _calibrate(config: CalibrateConfig) -> tuple[Device, Calibration]:
    """Starts a worker and measures it. Raises WorkerFailedError, WorkerLostError."""
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("starting the worker", total=None)
        async with _worker(config) as (link, device_name):
            kinds = kinds_of(link.hello)
            planner, num_passes = Planner(link.hello.block_size), 0

            async def measure_all() -> AsyncIterator[Measured | None]:
                nonlocal num_passes
                num_passes += 1
                name = "measuring steps" if num_passes == 1 else "measuring again, as the fit is poor"
                progress.reset(task, description=name, total=len(kinds))
                async for one in measure(link, kinds, planner):
                    progress.advance(task)
                    yield one

            fitted = await fit_that_is_trusted(measure_all)
            return _device(link.hello, device_name, fitted), fitted


@contextlib.asynccontextmanager
async def _worker(config: CalibrateConfig) -> AsyncIterator[tuple[WorkerLink, str]]:
    """Starts a worker process for the calibration and yields its link and its device's name. Stops it at the end."""
    values = {field.name: getattr(config, field.name) for field in fields(WorkerConfig)}
    with tempfile.TemporaryDirectory(prefix="quire-calibrate-") as directory:
        address = f"unix:{directory}/worker.sock"
        worker = WorkerConfig(**{**values, "listen": (address,), "status_fd": None})
        argv = python_command("quire", "worker", *to_argv(worker))
        observer = _Start()
        part = await Part.start(PartSpec("worker", argv), child_environment(), observer)
        try:
            ended = asyncio.create_task(part.ended())
            ready = asyncio.create_task(observer.ready.wait())
            await asyncio.wait((ended, ready), return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if ended.done():
                raise WorkerFailedError(ended.result())
            link = await WorkerLink.claim(address, Claimant("calibrate"), timeout_s=10)
            try:
                yield link, part.status.facts.get("device", "cpu")
            finally:
                await link.close()
        finally:
            ended.cancel()
            await part.stop()


class _Start:
    """Observes the start of a part. `ready` is set when the part is ready."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()

    def on_status(self, name: str, status: Status) -> None:
        if status.state == "ready":
            self.ready.set()

    def on_line(self, name: str, line: str) -> None:
        """Does nothing: `Part` itself keeps the last lines, for its error text."""


def _device(hello: WorkerHello, device_name: str, fitted: Calibration) -> Device:
    return Device(
        step=fitted.step,
        num_blocks=hello.num_blocks,
        block_size=hello.block_size,
        max_model_len=hello.model.max_model_len,
        max_num_seqs=hello.max_num_seqs,
        max_num_batched_tokens=hello.max_num_batched_tokens,
        num_host_blocks=hello.num_host_blocks,
        swap_seconds_per_block=hello.swap_seconds_per_block,
        origin={
            "model": hello.model.name,
            "device": _processor() if device_name == "cpu" else device_name,
            "torch": version("torch"),
            "date": datetime.date.today().isoformat(),
            "median_error": fitted.median_error,
            "worst_error": fitted.worst_error,
        },
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
