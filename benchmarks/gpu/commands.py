"""The commands of a GPU's first hour: `smoke` and `lease`. Each runs groups of cases and leaves one archive.

    python -m benchmarks.gpu smoke --out DIR [--cache PATH]
    python -m benchmarks.gpu lease --form bf16|fp8|awq --out DIR [--cache PATH]

DIR gets smoke.tar.gz (or lease-FORM.tar.gz) and Triton's cache in triton-cache-N.tar.xz, for `--cache` of the next
call. The order of the commands is in docs/gpu-first-hour.md.
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

# One per kind of kernel, in the order in which they begin.
KERNEL_MODULES = ("products", "attention", "sampling", "elementwise")
ENGINE_MODULES = ("serving", "encoder")
# GPU memory of one process by the sizes of its largest tensors and half a gigabyte of context: an estimate from above.
KERNEL_BYTES = 6 << 30
ENGINE_BYTES = 16 << 30  # on average: Llama-3.1-8B's in floats takes about 26 GiB, the others 3 to 15


@dataclass(frozen=True, slots=True)
class Stage:
    """Groups that run side by side, after those of the stage before."""

    name: str
    groups: Sequence[Group]
    num_processes: int
    failures: Sequence[Result] = ()  # a result for each module of cases that does not import


def main(words: Sequence[str]) -> int:
    """Returns 0 if every case passed or was skipped, 1 if one failed or was not run."""
    options = parse(words)
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before the children import Triton
    else:
        os.environ["TRITON_INTERPRET"] = "0"
    import torch

    if not options.dry_run and not torch.cuda.is_available():
        print("there is no GPU here; --dry-run runs the same code on a simulated one", file=sys.stderr)
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
                print("ended by a signal: what was measured is kept", file=sys.stderr)
            text = table(supervisor.results)
            print(text, flush=True)
            record.write_archive(supervisor.results, text)
    began = time.monotonic()
    archives = [] if options.dry_run else triton_cache.pack(options.out)
    print(f"-- packed Triton's cache: {time.monotonic() - began:.1f} s")
    for path in (record.path, *archives):
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB", flush=True)
    results = supervisor.results
    return 0 if results and all(result.status in ("ok", "skipped") for result in results) else 1


def _run_stage(stage: Stage, supervisor: Supervisor, record: Record) -> None:
    began = time.monotonic()
    for failed in stage.failures:
        supervisor.add(failed)
    supervisor.run(stage.groups, stage.num_processes)
    record.stage(stage.name, time.monotonic() - began)


def stages(command: str, setting: Setting, only: str = "") -> Iterator[Stage]:
    """`only`: a regular expression for the names of the groups that are wanted."""
    found = _lease_stages(setting) if command == "lease" else _smoke_stages(setting)
    for stage in found:
        groups = [group for group in stage.groups if re.search(only, group.name)]
        if groups or stage.failures:
            yield Stage(stage.name, groups, stage.num_processes, stage.failures)


def _smoke_stages(setting: Setting) -> Iterator[Stage]:
    """Kernels first, in as many processes as there are cores: each compiles its share, and the engines find the
    compiled kernels in Triton's cache."""
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
    """The module's groups. If it does not import, adds that to `failures`."""
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
    """As many as there are cores for and as the GPU has memory for, up to `most`."""
    count = min(most, num_cores())
    if setting.dry_run or not (num_bytes := _gpu_bytes()):
        return count
    return max(1, min(count, num_bytes // process_bytes))


def _gpu_bytes() -> int:
    """The memory of the first GPU; 0 without one."""
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("command", choices=("smoke", "lease"))
    parser.add_argument("--form", choices=tuple(FORMS), help="form of the weights; smoke takes all if it is left out")
    parser.add_argument("--out", type=Path, required=True, help="folder for the archives")
    parser.add_argument("--cache", type=Path, help="folder or archive that an earlier call has left Triton's cache in")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds after which nothing new is begun")
    parser.add_argument("--only", default="", help="run the groups whose names match this regular expression")
    parser.add_argument("--commit", help="the tree's, to be kept with the results; git's word if left out")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the simulated GPU: no figure counts")
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
    """SIGTERM and SIGINT end the children. The command goes on: it lists what was not run and writes its archive."""

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
    """A dry run leaves nothing in Triton's cache."""
    if not wanted:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="quire-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        yield
