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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from benchmarks.gpu import triton_cache
from benchmarks.gpu.archive import Record, table
from benchmarks.gpu.cases import Group, Setting
from benchmarks.gpu.forms import FORMS
from benchmarks.gpu.supervisor import Supervisor, num_cores


@dataclass(frozen=True, slots=True)
class Stage:
    """Groups that run side by side, after those of the stage before."""

    name: str
    groups: Sequence[Group]
    num_processes: int


class EndedError(Exception):
    """SIGTERM came."""


def main(words: Sequence[str]) -> int:
    """0 if every case passed, 1 if one failed or was not run."""
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
    if options.cache is not None:
        count = triton_cache.unpack(options.cache)
        record.stage(f"{count} kernels unpacked into Triton's cache", time.monotonic() - start)
    supervisor = Supervisor(setting, record.logs, start + options.limit, record)
    try:
        with _ended_by_sigterm():
            for stage in stages(options.command, setting, options.only):
                began = time.monotonic()
                supervisor.run(stage.groups, stage.num_processes)
                record.stage(stage.name, time.monotonic() - began)
    except (EndedError, KeyboardInterrupt):
        print("ended by a signal: what was measured is kept", file=sys.stderr)
        supervisor.stop()
    results = supervisor.results
    text = table(results)
    print(text, flush=True)
    record.write_archive(results, text)
    began = time.monotonic()
    archives = [] if options.dry_run else triton_cache.pack(options.out)
    print(f"-- packed Triton's cache: {time.monotonic() - began:.1f} s")
    for path in (record.path, *archives):
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB", flush=True)
    return 0 if results and all(result.status == "ok" for result in results) else 1


def stages(command: str, setting: Setting, only: str = "") -> Iterator[Stage]:
    """`only`: a regular expression for the names of the groups that are wanted."""
    found = _lease_stages(setting) if command == "lease" else _smoke_stages(setting)
    for stage in found:
        groups = [group for group in stage.groups if re.search(only, group.name)]
        if groups:
            yield Stage(stage.name, groups, stage.num_processes)


def _smoke_stages(setting: Setting) -> Iterator[Stage]:
    """Kernels first, in as many processes as there are cores: each compiles its share, and the engines find the
    compiled kernels in Triton's cache."""
    modules = ("products", "attention", "sampling", "elementwise")
    kernels = [group for module in modules for group in _groups(f"benchmarks.gpu.smoke.{module}", setting, 60.0)]
    engines = _groups("benchmarks.gpu.smoke.serving", setting, 120.0)
    alone = [group for group in engines if group.name.startswith("alone")]
    yield Stage("kernels", kernels, min(16, num_cores()))
    yield Stage("engines", [group for group in engines if group not in alone], min(8, num_cores()))
    yield Stage("an engine alone", alone, 1)


def _lease_stages(setting: Setting) -> Iterator[Stage]:
    yield Stage("one engine", _groups("benchmarks.gpu.lease", setting, 150.0), 1)


def _groups(module: str, setting: Setting, limit_s: float) -> list[Group]:
    import importlib

    names = importlib.import_module(module).cases(setting)
    # Triton's interpreter is slow, and whoever tests with it may share the machine.
    return [Group(module, name, limit_s * (10 if setting.dry_run else 1)) for name in names]


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
def _ended_by_sigterm() -> Iterator[None]:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise EndedError

    before: Callable[[int, FrameType | None], object] | int | None = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _private_cache(wanted: bool) -> Iterator[None]:
    """A dry run leaves nothing in Triton's cache."""
    if not wanted:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="quire-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        yield
