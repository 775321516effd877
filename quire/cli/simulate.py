"""`quire simulate TRACE`: simulates a cluster on a trace in virtual time, or finds how many workers a trace needs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quire.simulator.cluster import Layout
from quire.simulator.device import Device, DeviceError, read_device
from quire.simulator.group import Overheads
from quire.simulator.report import PERCENTILES, Report, Target, samples_of, table
from quire.simulator.sizing import run_trial, smallest_cluster
from quire.simulator.traces import Request, TraceError, poisson, read_trace
from services.scheduler.core import PreemptionMode
from shared.config import option, resolve, stop

PROG = "quire simulate"


@dataclass(frozen=True, slots=True)
class SimulateConfig:
    trace: str = option(
        "", "Requests: a CSV file in Azure's format or JSON lines in Mooncake's. See also --poisson.", positional=True
    )
    device: str = option("", "A worker's speed and memory: a file that `quire calibrate` wrote.")
    workers: int = option(1, "Number of worker groups.", minimum=1)
    schedulers: int | None = option(
        None, "Number of schedulers that share the worker groups. Default: one per group.", minimum=1
    )
    routers: int = option(1, "Number of routers.", minimum=1)

    slo_ttft_ms: float | None = option(
        None,
        "Target for the time to first token in milliseconds: find the smallest number of workers that meets "
        "it, at most --workers.",
        minimum=0,
    )
    slo_tbt_ms: float | None = option(
        None, "Target for the time between tokens in milliseconds, used like --slo-ttft-ms.", minimum=0
    )
    slo_percentile: int = option(99, "Percentile that must meet the two targets: 50, 90, 95 or 99.")

    poisson: float | None = option(
        None,
        "Generate random arrivals (a Poisson process) at this many requests per second, instead of a trace.",
        minimum=1e-6,
    )
    duration: float | None = option(
        None, "Seconds of the trace to simulate. If left out, all of it, or 600 with --poisson.", minimum=1e-3
    )
    prompt_tokens: int = option(512, "Average prompt length of --poisson's requests in tokens.", minimum=1)
    output_tokens: int = option(128, "Average output length of --poisson's requests in tokens.", minimum=1)
    random_range_ratio: float = option(
        0.5, "Fraction by which these lengths vary around the average.", minimum=0, maximum=1
    )
    seed: int = option(0, "Random seed of --poisson's requests.")
    speedup: float = option(1.0, "Factor by which requests arrive faster than recorded.", minimum=1e-6)

    max_num_seqs: int | None = option(
        None, "Maximum number of sequences in one step. Default: the device's.", minimum=1
    )
    max_num_batched_tokens: int | None = option(
        None, "Maximum number of tokens in one step. Default: the device's.", minimum=1
    )
    num_blocks: int | None = option(None, "KV blocks of a worker. Default: the device's.", minimum=1)
    max_model_len: int | None = option(
        None, "Longest sequence, prompt and output together, in tokens. Default: the device's.", minimum=1
    )
    target_tbt_ms: float = option(
        50.0,
        "Target time between tokens in milliseconds: chunks of prompts are kept so small that running streams "
        "stay within it. 0: no target.",
        minimum=0,
    )
    step_overhead_ms: float = option(
        0.0,
        "Milliseconds to add to each calibrated step, because the router and other services share the worker's "
        "processor cores. Set it to a lone request's measured time between tokens minus the simulated one.",
        minimum=0,
    )
    run_ahead: int | None = option(
        None, "Plans in flight. Default: as many as hide the round trip to the worker.", minimum=1, maximum=8
    )
    enable_prefix_caching: bool = option(True, "Prefix caching: prompts with a common prefix share its KV blocks.")
    preemption_mode: str = option("auto", "How a preempted sequence continues.", choices=("auto", "recompute", "swap"))
    max_num_queued_reqs: int = option(1024, "Maximum number of sequences that wait at a scheduler.", minimum=1)

    processes: int | None = option(None, "Processes to simulate with. Default: one per core.", minimum=1)
    output: str = option("", "Folder for plots (PNG), report.html and report.json.")
    json: bool = option(False, "Print JSON.")


def main(argv: Sequence[str]) -> int:
    config = resolve(SimulateConfig, argv, prog=PROG, description="Simulates a cluster on a trace, in virtual time.")
    if not config.device:
        stop(PROG, "--device is missing: a file that `quire calibrate` wrote")
    if config.slo_percentile not in PERCENTILES:
        stop(PROG, f"--slo-percentile is {config.slo_percentile}: use one of {PERCENTILES}")
    if config.output:
        # `plots` is used after the simulation, but imported before it, so that the command fails at once if matplotlib
        # is missing. The folder is created before the simulation for the same reason.
        from quire.simulator import plots
    try:
        if config.output:
            Path(config.output).mkdir(parents=True, exist_ok=True)
        device = read_device(Path(config.device))
        layout = _layout(config, device)
        requests = _requests(config)
    except (DeviceError, TraceError, ValueError, OSError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    if device.distrust:
        print(f"{PROG}: warning: {device.distrust}", file=sys.stderr)
    processes = config.processes or os.cpu_count() or 1
    target = _target(config)
    start = time.monotonic()
    tried: list[Report] = []
    if target is None:
        trial = run_trial(layout, requests, processes)
    else:

        def on_report(report: Report) -> None:
            tried.append(report)
            print(_trial_line(report, target), file=sys.stderr)

        best = smallest_cluster(
            layout, requests, target, most=layout.num_groups, num_processes=processes, on_report=on_report
        )
        if best is None:
            print(f"{PROG}: {layout.num_groups} workers do not meet the target; raise --workers", file=sys.stderr)
            return 1
        trial = best
    seconds = time.monotonic() - start
    text = json.dumps(trial.report.as_dict(), indent=2)
    if config.json:
        print(text)
    else:
        print(f"{table(trial.report)}\n\nsimulated in {seconds:.1f} s with at most {processes} processes")
    if config.output:
        samples = samples_of(requests, trial.result)
        page = plots.write(Path(config.output), _title(config), trial.report, samples, tried, config.slo_percentile)
        (page.parent / "report.json").write_text(text + "\n")
        print(f"report: {page}", file=sys.stderr)
    return 0


def _requests(config: SimulateConfig) -> list[Request]:
    if bool(config.trace) == (config.poisson is not None):
        raise ValueError("give either a trace or --poisson")
    if config.poisson is not None:
        requests = poisson(
            config.poisson, config.duration or 600.0, config.prompt_tokens, config.output_tokens,
            spread=config.random_range_ratio, seed=config.seed,
        )  # fmt: skip
    else:
        requests = read_trace(Path(config.trace))
        if config.duration is not None:
            requests = [request for request in requests if request.arrival_s < config.duration]
    if not requests:
        raise ValueError("the trace has no request within --duration")
    return [replace(request, arrival_s=request.arrival_s / config.speedup) for request in requests]


def _layout(config: SimulateConfig, device: Device) -> Layout:
    keeps_target = config.target_tbt_ms > 0 and config.max_num_batched_tokens is None
    core = device.core_config(
        num_blocks=config.num_blocks,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        target_tbt_s=config.target_tbt_ms / 1000 if keeps_target else None,
        preemption_mode=PreemptionMode(config.preemption_mode),
        enable_prefix_caching=config.enable_prefix_caching,
        max_num_queued_reqs=config.max_num_queued_reqs,
    )
    num_schedulers = min(config.schedulers or config.workers, config.workers)
    overheads = Overheads(step=config.step_overhead_ms / 1000)
    return Layout(config.routers, num_schedulers, config.workers, core, device.step, overheads, config.run_ahead)


def _target(config: SimulateConfig) -> Target | None:
    if config.slo_ttft_ms is None and config.slo_tbt_ms is None:
        return None

    def seconds(milliseconds: float | None) -> float:
        return float("inf") if milliseconds is None else milliseconds / 1000

    return Target(seconds(config.slo_ttft_ms), seconds(config.slo_tbt_ms), config.slo_percentile)


def _trial_line(report: Report, target: Target) -> str:
    name = f"p{target.percentile}"
    times = [
        f"{what} {'none' if latency is None else format(1000 * getattr(latency, name), ',.0f') + ' ms'}"
        for what, latency in (
            (f"{name} time to first token", report.time_to_first_token),
            (f"{name} time between tokens", report.time_between_tokens),
        )
    ]
    verdict = "enough" if report.meets(target) else "too few"
    return f"{report.num_groups:>5} workers: {', '.join(times)}: {verdict}"


def _title(config: SimulateConfig) -> str:
    source = Path(config.trace).name if config.trace else f"{config.poisson:g} requests per second at random"
    return f"Quire simulation: {source}"
