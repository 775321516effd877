"""The commands of a GPU's first hour: `smoke` and `lease`. Each runs groups of cases and writes one archive.

    python -m benchmarks.gpu smoke --out DIR [--cache PATH]
    python -m benchmarks.gpu lease --form bf16|fp8|awq --out DIR [--cache PATH]

A command writes smoke.tar.gz (or lease-FORM.tar.gz) to DIR, and Triton's cache to triton-cache-N.tar.xz, which the next
command takes as `--cache`. docs/gpu-first-hour.md has the order of the commands.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from benchmarks.gpu import triton_cache
from benchmarks.gpu.archive import Record, table
from benchmarks.gpu.cases import Group, Result, Setting
from benchmarks.gpu.child import describe
from benchmarks.gpu.forms import FORMS
from benchmarks.gpu.supervisor import Supervisor, num_cores

# One module per kind of kernel, in the order in which they start.
KERNEL_MODULES = ("products", "attention", "experts", "sampling", "elementwise")
ENGINE_MODULES = ("serving", "encoder")
# Upper estimate of the GPU memory of one process: its largest tensors and half a gigabyte for the CUDA context.
KERNEL_BYTES = 6 << 30
ENGINE_BYTES = 16 << 30  # average; unquantized Llama-3.1-8B takes about 26 GiB, the others 3 to 15


@dataclass(frozen=True, slots=True)
class Stage:
    """Groups that run in parallel, after the previous stage has ended."""

    name: str
    groups: Sequence[Group]
    num_processes: int
    failures: Sequence[Result] = ()  # a result for each module of cases that cannot be imported


def main(words: Sequence[str]) -> int:
    """Returns 0 if every case passed or was skipped, 1 if one failed or was not run."""
    options = parse(words)
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before the children import Triton
    else:
        os.environ["TRITON_INTERPRET"] = "0"
    import torch

    if not options.dry_run and not torch.cuda.is_available():
        print("no GPU was found; --dry-run runs the same code on a simulated one", file=sys.stderr)
        return 1
    setting = Setting(options.form, options.dry_run)
    name = options.command if options.form is None else f"{options.command}-{options.form}"
    with _private_cache(options.dry_run), Record(options.out, name, about(options, words)) as record:
        return _run(options, setting, record)


def _run(options: argparse.Namespace, setting: Setting, record: Record) -> int:
    start = time.monotonic()
    supervisor = Supervisor(setting, record.logs, start + options.limit, record)
    text = ""
    with _stopped_by_signals(supervisor):
        try:
            if options.cache is not None:
                count = triton_cache.unpack(options.cache)
                record.stage(f"{count} kernels unpacked into Triton's cache", time.monotonic() - start)
            for stage in list(stages(options.command, setting, options.only)):
                _run_stage(stage, supervisor, record)
        except Exception as error:
            failed = Result(options.command, "(the command)", "failed", problem=describe(error))
            failed.traceback = traceback.format_exc()
            supervisor.add(failed)
        finally:
            if supervisor.is_stopped:
                print("stopped by a signal; the results so far are stored", file=sys.stderr)
            text = table(supervisor.results)
            print(text, flush=True)
            record.write_archive(supervisor.results, text)
            if options.command == "lease" and not options.dry_run:
                _store_figures(options, supervisor.results)
    began = time.monotonic()
    archives = [] if options.dry_run else triton_cache.pack(options.out)
    print(f"-- packed Triton's cache: {time.monotonic() - began:.1f} s")
    for path in (record.path, *archives):
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB", flush=True)
    results = supervisor.results
    return 0 if results and all(result.status in ("ok", "skipped") for result in results) else 1


def _store_figures(options: argparse.Namespace, results: Sequence[Result]) -> None:
    """Writes the figures to the output directory, in the form of those that the other parts store."""
    import torch

    from benchmarks.gpu import machine
    from benchmarks.gpu.bench import Bench

    form = FORMS[options.form]
    name = Bench(dtype_name=form.dtype, quantization=form.quantization, kv_cache_dtype=form.kv_cache_dtype).name
    machine.store(
        options.out / f"gpu_lease_{name}.json", [figure for result in results for figure in result.figures],
        torch.device("cuda", 0), options.commit or machine.commit(), [options.command, "--form", options.form],
    )  # fmt: skip


def _run_stage(stage: Stage, supervisor: Supervisor, record: Record) -> None:
    began = time.monotonic()
    for failed in stage.failures:
        supervisor.add(failed)
    supervisor.run(stage.groups, stage.num_processes)
    record.stage(stage.name, time.monotonic() - began)


def stages(command: str, setting: Setting, only: str = "") -> Iterator[Stage]:
    """Yields the stages of a command. `only`: a regular expression that selects groups by name."""
    found = _lease_stages(setting) if command == "lease" else _smoke_stages(setting)
    for stage in found:
        groups = [group for group in stage.groups if re.search(only, group.name)]
        if groups or stage.failures:
            yield Stage(stage.name, groups, stage.num_processes, stage.failures)


def _smoke_stages(setting: Setting) -> Iterator[Stage]:
    """Yields the stages of `smoke`. The kernels run first, in one process per core, each of which compiles a part of
    them. The engines then find compiled kernels in Triton's cache."""
    kernels: list[Group] = []
    failures: list[Result] = []
    for name in KERNEL_MODULES:
        kernels += _groups(f"benchmarks.gpu.smoke.{name}", setting, 60.0, failures)
    yield Stage("kernels", kernels, _num_processes(setting, 16, KERNEL_BYTES), failures)
    failures = []
    engines = [
        group for name in ENGINE_MODULES for group in _groups(f"benchmarks.gpu.smoke.{name}", setting, 120.0, failures)
    ]
    alone = [group for group in engines if group.name.startswith("alone")]
    together = [group for group in engines if group not in alone]
    yield Stage("engines", together, _num_processes(setting, 8, ENGINE_BYTES), failures)
    yield Stage("an engine alone", alone, 1)


def _lease_stages(setting: Setting) -> Iterator[Stage]:
    failures: list[Result] = []
    groups = _groups("benchmarks.gpu.lease", setting, 150.0, failures)
    yield Stage("one engine", groups, 1, failures)


def _groups(module: str, setting: Setting, limit_s: float, failures: list[Result]) -> list[Group]:
    """Returns the module's groups. If the module cannot be imported, adds a result to `failures`."""
    import importlib

    try:
        names = list(importlib.import_module(module).cases(setting))
    except Exception as error:
        problem = f"{module}: {describe(error)}"
        failures.append(Result(module, "(import)", "failed", problem=problem, traceback=traceback.format_exc()))
        return []
    # Triton's interpreter is slow, and a dry run may share the machine with other tests.
    return [Group(module, name, limit_s * (10 if setting.dry_run else 1)) for name in names]


def _num_processes(setting: Setting, most: int, process_bytes: int) -> int:
    """Returns the number of parallel processes: limited by the cores, the GPU's memory and `most`."""
    count = min(most, num_cores())
    if setting.dry_run or not (num_bytes := _gpu_bytes()):
        return count
    return max(1, min(count, num_bytes // process_bytes))


def _gpu_bytes() -> int:
    """Returns the memory of the first GPU in bytes, or 0 without a GPU."""
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("command", choices=("smoke", "lease"))
    parser.add_argument("--form", choices=tuple(FORMS), help="format of the weights; default for smoke: all")
    parser.add_argument("--out", type=Path, required=True, help="folder for the archives")
    parser.add_argument("--cache", type=Path, help="folder or archive with Triton's cache from an earlier command")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds after which the command ends")
    parser.add_argument("--only", default="", help="run the groups whose names match this regular expression")
    parser.add_argument("--commit", help="commit to store with the results; default: git's")
    parser.add_argument(
        "--dry-run", action="store_true", help="run tiny shapes on the simulated GPU; the figures are meaningless"
    )
    options = parser.parse_args(words)
    if options.command == "lease" and options.form is None:
        parser.error("lease measures one form: --form bf16, fp8 or awq")
    return options


def about(options: argparse.Namespace, words: Sequence[str]) -> dict[str, object]:
    import torch

    from benchmarks.gpu import machine

    device = torch.device("cpu") if options.dry_run else torch.device("cuda", 0)
    commit = options.commit or machine.commit()
    print(f"{' '.join(words)}; commit {commit}; {machine.describe(device)}", flush=True)
    return {
        "arguments": list(words),
        "commit": commit,
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": machine.describe(device),
    }


@contextmanager
def _stopped_by_signals(supervisor: Supervisor) -> Iterator[None]:
    """Lets SIGTERM and SIGINT end the children only. The command then lists the cases that were not run and writes its
    archive."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        supervisor.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _private_cache(wanted: bool) -> Iterator[None]:
    """Gives a dry run its own Triton cache, so that it writes nothing to the user's cache."""
    if not wanted:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="quire-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        yield
