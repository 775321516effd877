"""Measures the speed and the accuracy of the simulator. For accuracy, compares its prediction with a real run of the
same requests on this machine's worker, which is calibrated in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.shapes import M15, M135, Shape
from benchmarks.stack import parts
from quire.client import AsyncClient
from quire.simulator.calibration import StepKind
from quire.simulator.cluster import Layout, simulate
from quire.simulator.device import Device, StepSeconds, read_device
from quire.simulator.group import Overheads
from quire.simulator.report import report_of, samples_of
from quire.simulator.traces import Request, poisson, read_trace
from shared.python_child import child_environment, python_command

TRACE = Path(__file__).parents[2] / "shared" / "traces" / "azure_code_2023.csv"
NUM_WORKERS = 20
# Step times of a GPU with a model of about seven billion parameters. Only used to measure the simulator's own speed.
SOME_GPU = StepSeconds(base=0.01, per_token=2.5e-5, per_sequence=1e-5, per_kv_token=2e-8, per_pair=1e-10)

# If the calibrations before and after a load differ by more than this, the load is repeated, up to MAX_PLAYS runs.
MAX_DRIFT_PERCENT = 10
MAX_PLAYS = 3
# The worker uses half of the cores, and the other services the rest. With threads on all cores, its steps take twice as
# long as on an otherwise idle machine.
_FEW_THREADS = ("--num-threads", str(max(1, (os.cpu_count() or 1) // 2)))
_SMALL = (*_FEW_THREADS, "--max-num-seqs", "128", "--max-num-batched-tokens", "512", "--max-model-len", "2048")


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that a real worker runs and the simulator predicts. `worker`: the worker's options.

    Before the load, `num_lone` requests run one at a time, `lone_s` seconds apart. The difference between their times
    and the calibrated worker's is the overhead of the other services on this machine, per request and per step. The
    prediction of the load includes this overhead.
    """

    requests: list[Request]
    shape: Shape = M15
    worker: Sequence[str] = _SMALL
    num_lone: int = 24
    lone_s: float = 0.4

    @property
    def lone(self) -> list[Request]:
        requests = poisson(10.0, 4.0, 200, 60, spread=0.0, seed=0)[: self.num_lone]
        return [replace(one, arrival_s=self.lone_s * number) for number, one in enumerate(requests)]


# Prompts have 200 tokens and outputs 60 on average. With the larger model, outputs have 100, and the worker uses all
# cores, as by default.
LOADS = {
    "half_busy": Load(poisson(4.0, 45.0, 200, 60, spread=0.5, seed=1)),
    "busy": Load(poisson(7.0, 45.0, 200, 60, spread=0.5, seed=2)),
    "all_at_once": Load([replace(one, arrival_s=0.0) for one in poisson(10.0, 16.0, 200, 60, spread=0.5, seed=3)]),
    "all_cores": Load(poisson(1.0, 60.0, 200, 100, spread=0.5, seed=1), M135, (), num_lone=8, lone_s=3.0),
}


@dataclass(frozen=True, slots=True)
class Played:
    """Latencies that the clients of a real run measured, in seconds."""

    first_tokens: list[float]
    between_tokens: list[float]
    tokens_per_s: float


def layout_of(device: Device, num_groups: int, overheads: Overheads | None = None) -> Layout:
    core = device.core_config(target_tbt_s=0.05)
    return Layout(1, num_groups, num_groups, core, device.step, overheads or Overheads())


async def play(address: str, requests: list[Request]) -> Played:
    first_tokens: list[float] = []
    between_tokens: list[float] = []
    # The simulator's prompts may have any token id, but the model's vocabulary is limited.
    chance = np.random.default_rng()
    prompts = [chance.integers(3, 8000, request.num_prompt_tokens).tolist() for request in requests]

    async def ask(client: AsyncClient, request: Request, prompt: list[int], start: float) -> None:
        await asyncio.sleep(start + request.arrival_s - time.perf_counter())
        sent = time.perf_counter()
        seen: list[float] = []
        async for delta in client.stream_generate(
            prompt, max_tokens=request.num_output_tokens, temperature=0.0, ignore_eos=True
        ):
            seen += [time.perf_counter()] * len(delta.token_ids)
        first_tokens.append(seen[0] - sent)
        between_tokens.extend(after - before for before, after in pairwise(seen))

    async with AsyncClient(address) as client:
        await client.generate([5] * 50, max_tokens=20, ignore_eos=True)
        start = time.perf_counter() + 0.1
        pairs = zip(requests, prompts, strict=True)
        await asyncio.gather(*(ask(client, request, prompt, start) for request, prompt in pairs))
        seconds = time.perf_counter() - start - requests[0].arrival_s
    return Played(first_tokens, between_tokens, sum(request.num_output_tokens for request in requests) / seconds)


def calibrate(worker: Sequence[str], path: Path) -> Device:
    subprocess.run(
        python_command("quire", "calibrate", *worker, "--output", str(path)), env=child_environment(),
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return read_device(path)


def accuracy(names: Sequence[str] = tuple(LOADS)) -> dict[str, float]:
    """Returns the prediction errors of the named loads.

    A machine's speed changes within minutes. So each load runs between two calibrations, and the prediction uses their
    mean. If the two calibrations differ too much, the load is repeated.
    """
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory:
        for name in names:
            load, files = LOADS[name], Path(directory) / name
            files.mkdir()
            played: list[dict[str, float]] = []
            while len(played) < MAX_PLAYS and (not played or abs(played[-1]["drift_percent"]) > MAX_DRIFT_PERCENT):
                played.append(play_and_predict(load, files))
                print(f"{name}: {json.dumps(played[-1])}", file=sys.stderr)
            steadiest = min(played, key=lambda one: abs(one["drift_percent"]))
            figures |= {f"{name}_{key}": value for key, value in steadiest.items()}
    return figures


def play_and_predict(load: Load, directory: Path) -> dict[str, float]:
    """Runs a load and predicts it. `drift_percent`: by how much a step of 8 sequences took longer after the load than
    before it."""
    worker = [*load.shape.write(directory), *load.worker]
    before = calibrate(worker, directory / "before.json")
    with parts(*worker) as running:
        lone = asyncio.run(play(running.grpc, load.lone))
        played = asyncio.run(play(running.grpc, load.requests))
    after = calibrate(worker, directory / "after.json")
    kind = np.array([StepKind(8, 300, 0, 0).features])
    first, second = (float(device.step.predict(kind)[0]) for device in (before, after))
    device = replace(before, step=mean_of(before.step, after.step))
    overheads = overheads_of(lone, load.lone, device)
    return {
        "drift_percent": 100 * (second / first - 1),
        "fit_median_error_percent": 100 * float(before.origin["median_error"]),
        "request_overhead_ms": 1e3 * overheads.request,
        "step_overhead_ms": 1e3 * overheads.step,
        **beside(played, layout_of(device, 1, overheads), load.requests),
    }


def overheads_of(lone: Played, requests: Sequence[Request], device: Device) -> Overheads:
    """Returns the overheads with which the simulator reproduces the latencies of requests that ran one at a time."""
    none = Overheads(request=0.0)
    simulated = samples_of(requests, simulate(layout_of(device, 1, none), requests))
    step = float(np.mean(lone.between_tokens) - simulated.time_between_tokens.mean())
    request = float(np.mean(lone.first_tokens) - simulated.time_to_first_token.mean()) - step
    return replace(none, request=max(0.0, request), step=max(0.0, step))


def mean_of(one: StepSeconds, other: StepSeconds) -> StepSeconds:
    return StepSeconds(*((getattr(one, term.name) + getattr(other, term.name)) / 2 for term in fields(one)))


def beside(played: Played, layout: Layout, requests: list[Request]) -> dict[str, float]:
    """Returns real and simulated times in milliseconds, tokens per second, and the errors in percent."""
    result = simulate(layout, requests)
    samples = samples_of(requests, result)
    made = report_of(layout, requests, result)
    rows = {
        "ttft_mean": (1e3 * float(np.mean(played.first_tokens)), 1e3 * float(samples.time_to_first_token.mean())),
        "tbt_mean": (1e3 * float(np.mean(played.between_tokens)), 1e3 * float(samples.time_between_tokens.mean())),
        "tokens_per_s": (played.tokens_per_s, made.output_tokens_per_s),
    }
    for percent in (50, 99):
        real = 1e3 * float(np.percentile(played.first_tokens, percent))
        rows[f"ttft_p{percent}"] = (real, 1e3 * float(np.percentile(samples.time_to_first_token, percent)))
    figures = {"worker_busy_percent": 100 * made.worker_busy_share}
    for name, (real, simulated) in rows.items():
        figures |= {
            name: real, f"{name}_simulated": simulated, f"{name}_error_percent": 100 * (simulated / real - 1),
        }  # fmt: skip
    return figures


def speed() -> dict[str, float]:
    """Simulates an hour of production requests on NUM_WORKERS workers. Empty if the trace file is missing."""
    if not TRACE.exists():
        return {}
    device = Device(SOME_GPU, 40_000, 16, 16_384, 256, 2048)
    requests = read_trace(TRACE)
    figures: dict[str, float] = {}
    for speedup in (1, 10):
        faster = [replace(request, arrival_s=request.arrival_s / speedup) for request in requests]
        layout = layout_of(device, NUM_WORKERS)
        start = time.perf_counter()
        made = report_of(layout, faster, simulate(layout, faster, os.cpu_count() or 1))
        seconds = time.perf_counter() - start
        figures |= {
            f"azure_x{speedup}_seconds": seconds,
            f"azure_x{speedup}_simulated_s": made.duration_s,
            f"azure_x{speedup}_steps_per_s": made.num_steps / seconds,
        }
    return figures


def measure() -> dict[str, float]:
    return accuracy() | speed()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("load", nargs="?", choices=LOADS, help="run only this load")
    name = parser.parse_args().load
    print(json.dumps(accuracy([name]) if name else measure(), indent=2))
