"""Compiles every served kernel for every target, without a GPU, and reports its resources.

    python -m services.worker.ops.triton.compile [--table FILE [--check]] [--only TEXT] [--capability 90]

Registers and spills are ptxas's report on the served code; shared memory is what a launch requests. For kernels that
should be bound by memory, it also reports the time to issue the inner loop's instructions, relative to the time to read
the loop's bytes. Exits with 1 if a kernel spills much, or needs more shared memory than a program can have on the
target.

`--table` keeps the results in a Markdown file, and compiles only what has changed since they were written, by the
digest at the end of each row. `--check` writes nothing: it fails if the file lacks a row, has one too many or one of
other inputs, and compares one row of each kernel with what the compiler makes of it now.
TRITON_INTERPRET must not be set, because at import this variable decides whether kernels are compiled at all.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import multiprocessing
import os
import pkgutil
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from services.worker.ops import triton as package
from services.worker.ops.triton.compile_inputs import digest
from services.worker.ops.triton.dependent_launch import launch_arguments
from services.worker.ops.triton.disassembly import PARTS, product_loop, spills_in_a_loop
from services.worker.ops.triton.variant import TARGETS, Variant

_HEADING = """# GPU kernels

What Triton's compiler and ptxas make of every served kernel, written by `make kernels` and checked in CI.
Nothing may spill in a loop, and outside of loops only 16 bytes. "Instructions / memory", for kernels bound by memory:
the time to issue the instructions of their inner loop over the time to read its bytes, on an A100, an RTX 3090, an L40S
and an H200. Over 1, instructions are the bound. "Inputs" is a digest of the kernel's source, its arguments and Triton's
version: `make kernels` compiles what has another one than here.

"""
_THREADS_PER_WARP = 32
_REGISTERS = 65536  # of one multiprocessor, allocated in units of 8 per thread
_WORTH_A_PROCESS = 16  # number of kernels that compile in the time that a new process takes to import Triton and torch
# Bytes that may be spilled outside of loops. ptxas moves a register or two out of the way there, in order that more
# programs fit into an SM.
_FEW_BYTES = 16
_RESERVED = 1024  # bytes of shared memory that CUDA reserves for itself per program


@dataclass(frozen=True, slots=True)
class Processor:
    """One multiprocessor of a target (CUDA C++ Programming Guide, section on compute capabilities)."""

    program_bytes: int  # most shared memory of one program
    shared_bytes: int  # shared memory of all programs together
    warps: int
    bytes_per_cycle: float  # its share of the memory bandwidth


# Multiprocessors by compute capability. The bandwidths and clocks are those of an A100 80 GB, an RTX 3090, an L40S and
# an H200, from their data sheets.
PROCESSORS = {
    80: Processor(163 << 10, 164 << 10, 64, 2.04e12 / 108 / 1.41e9),
    86: Processor(99 << 10, 100 << 10, 48, 0.936e12 / 82 / 1.70e9),
    89: Processor(99 << 10, 100 << 10, 48, 0.864e12 / 142 / 2.52e9),
    90: Processor(227 << 10, 228 << 10, 64, 4.8e12 / 132 / 1.98e9),
}


@dataclass(frozen=True, slots=True)
class Task:
    """A variant to compile, given by its module and its index in `variants()`, because kernels cannot be sent to other
    processes."""

    module: str
    index: int
    capability: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler makes of a variant."""

    name: str
    capability: int
    configuration: str
    num_warps: int
    registers: int  # per thread
    spilled_bytes: int  # per thread, stored and loaded
    shared_bytes: int
    # Time to issue the inner loop's instructions, divided by the time to read the bytes that the loop loads; None if
    # the kernel is not bound by memory.
    issue: float | None
    spills_in_a_loop: bool = False
    inputs: str = ""  # `inputs_of` the variant

    @property
    def fits(self) -> bool:
        return not self.spills_much and self.shared_bytes <= PROCESSORS[self.capability].program_bytes

    @property
    def spills_much(self) -> bool:
        return self.spills_in_a_loop or self.spilled_bytes > _FEW_BYTES

    @property
    def programs(self) -> int:
        """Number of programs of this kernel that one multiprocessor runs at once."""
        processor = PROCESSORS[self.capability]
        threads = self.num_warps * _THREADS_PER_WARP
        by_registers = _REGISTERS // (-(-self.registers // 8) * 8 * threads)
        by_shared_memory = processor.shared_bytes // (self.shared_bytes + _RESERVED)
        return min(by_registers, by_shared_memory, processor.warps // self.num_warps)


def tasks() -> Iterator[Task]:
    """Yields a task for each variant in this package's modules and each compute capability that the variant is for."""
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if info.name != __name__ and hasattr(importlib.import_module(info.name), "variants"):
            for index, variant in enumerate(_variants(info.name)):
                yield from (Task(info.name, index, capability) for capability in variant.capabilities)


def compile_task(task: Task) -> Compiled:
    return compile_variant(_variant(task), task.capability)


def build(variant: Variant, capability: int) -> triton.compiler.CompiledKernel:
    """Compiles a variant as most steps launch it on devices of this capability, or reads it from Triton's cache. A
    launch of the same variant then finds it there. Raises errors like `compile_variant`."""
    variant, options = _as_launched(variant)
    source = ASTSource(variant.kernel, _types(variant), dict(variant.constexprs), _attributes(variant))
    return triton.compile(source, target=GPUTarget("cuda", capability, _THREADS_PER_WARP), options=options)


def inputs_of(variant: Variant, capability: int) -> str:
    """Returns a digest of all that decides what the compiler makes of a variant, and what `Compiled` says of it."""
    as_launched, options = _as_launched(variant)
    given = (_types(as_launched), as_launched.constexprs, _attributes(as_launched), options)
    return digest(as_launched.kernel, *given, capability, variant.loop_bytes)


def _as_launched(variant: Variant) -> tuple[Variant, dict[str, int]]:
    """Returns the variant with all its constexprs, and the options of its launch."""
    options: dict[str, int] = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    if "PDL" in variant.kernel.arg_names:
        arguments = launch_arguments()
        variant = replace(variant, constexprs={**variant.constexprs, "PDL": arguments["PDL"]})
        options |= {name: value for name, value in arguments.items() if name != "PDL"}
    return variant, options


def compile_variant(variant: Variant, capability: int) -> Compiled:
    """Compiles a variant. Raises Triton's error if the kernel does not compile, and ValueError if the signature does
    not match the kernel."""
    output = io.StringIO()
    with knobs.compilation.scope(), knobs.nvidia.scope(), contextlib.redirect_stdout(output):
        knobs.compilation.always_compile = True
        knobs.nvidia.dump_ptxas_log = True
        kernel = build(variant, capability)
    log = output.getvalue()
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if registers is None or spills is None:
        raise RuntimeError(f"ptxas reported nothing about {variant.name}: {log!r}")
    blocks = [f"{name[6:].lower()} {size}" for name, size in variant.constexprs.items() if name.startswith("BLOCK_")]
    return Compiled(
        name=variant.name,
        capability=capability,
        configuration=", ".join((*blocks, f"warps {variant.num_warps}", f"stages {variant.num_stages}")),
        num_warps=variant.num_warps,
        registers=int(registers[1]),
        spilled_bytes=int(spills[1]) + int(spills[2]),
        shared_bytes=kernel.metadata.shared,
        issue=_issue(variant, capability, kernel.asm["cubin"]),
        spills_in_a_loop=int(spills[2]) > 0 and spills_in_a_loop(kernel.asm["cubin"]),
        inputs=inputs_of(variant, capability),
    )


def _issue(variant: Variant, capability: int, cubin: bytes) -> float | None:
    if not variant.loop_bytes:
        return None
    cycles = product_loop(cubin) * variant.num_warps / PARTS
    return cycles / (variant.loop_bytes / PROCESSORS[capability].bytes_per_cycle)


_HEADER = (
    "| kernel | target | configuration | registers | spilled | shared memory | programs per processor "
    "| instructions / memory | inputs |\n|---|---|---|---:|---:|---:|---:|---:|---|\n"
)


def row(result: Compiled) -> str:
    """Returns a result as a row of the Markdown table."""
    spilled = f"**{result.spilled_bytes}**" if result.spills_much else str(result.spilled_bytes)
    limit = PROCESSORS[result.capability].program_bytes
    shared = str(result.shared_bytes) if result.shared_bytes <= limit else f"**{result.shared_bytes}** of {limit}"
    issue = "" if result.issue is None else f"{result.issue:.2f}"
    cells = (
        result.name, f"sm_{result.capability}", result.configuration, result.registers, spilled, shared,
        result.programs, issue, result.inputs,
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def rows_of(path: Path) -> list[str]:
    """Returns the rows of a file that `--table` wrote, none if it is not there."""
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines() if " | sm_" in line]


def compile_all(chosen: Sequence[Task]) -> list[Compiled]:
    """Compiles the tasks in as many processes as there are cores and it is worth."""
    if not chosen:
        return []
    num_processes = min(len(os.sched_getaffinity(0)), -(-len(chosen) // _WORTH_A_PROCESS))
    # Spawn the processes instead of forking: a process that has started LLVM must not fork.
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as cache_directory,
        ProcessPoolExecutor(num_processes, context, _use_cache, (cache_directory,)) as executor,
    ):
        return list(executor.map(compile_task, chosen))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile every served kernel for every target.")
    parser.add_argument("--table", type=Path, metavar="FILE", help="file of results to bring up to date")
    parser.add_argument("--check", action="store_true", help="only say whether the table is up to date")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="compile only variants whose module and name contain this text"
    )
    parser.add_argument("--capability", type=int, choices=TARGETS, help="compile for this target only")
    options = parser.parse_args(arguments)
    if knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: there is nothing to compile")
    if options.check and options.table is None:
        parser.error("--check needs --table")
    chosen = [
        task
        for task in tasks()
        if options.only in f"{task.module} {_variant(task).name}" and options.capability in (None, task.capability)
    ]
    if not chosen:
        parser.error(f"no variant has {options.only!r} in its name")
    known = [] if options.table is None else rows_of(options.table)
    if options.check:
        return _check(chosen, known)
    kept = {_key(line): line for line in known if "**" not in line}
    keys = [_key_of(task) for task in chosen]
    results = compile_all([task for task, key in zip(chosen, keys, strict=True) if key not in kept])
    kept |= {_key(line): line for line in map(row, results)}
    text = _HEADER + "".join(f"{kept[key]}\n" for key in keys)
    if options.table is None:
        print(text, end="")
    else:
        options.table.write_text(_HEADING + text, encoding="utf-8")
        print(f"compiled {len(results)} of {len(keys)} variants; the others are as they were")
    misfits = [result for result in results if not result.fits]
    for result in misfits:
        print(f"{result.name} for sm_{result.capability} spills much or needs too much shared memory", file=sys.stderr)
    return 1 if misfits else 0


def _check(chosen: Sequence[Task], known: Sequence[str]) -> int:
    keys = [_key_of(task) for task in chosen]
    stale = set(keys) ^ set(map(_key, known))
    samples = {_variant(task).kernel: task for task in chosen}  # the last of each kernel, for the newest target
    rows = {_key(line): line for line in known}
    differing = [line for line in map(row, compile_all(list(samples.values()))) if rows.get(_key(line)) != line]
    for name in sorted({f"{name} for {target}" for name, target, _ in stale}):
        print(f"{name} is not as in the table", file=sys.stderr)
    for line in differing:
        print(f"the compiler makes something else of: {line}", file=sys.stderr)
    if stale or differing:
        print("run `make kernels`, and commit the table", file=sys.stderr)
        return 1
    misfits = [line for line in known if "**" in line]
    for line in misfits:
        print(f"spills much or needs too much shared memory: {line}", file=sys.stderr)
    print(f"{len(known)} rows are up to date; {len(samples)} were compiled again")
    return 1 if misfits else 0


def _key(line: str) -> tuple[str, str, str]:
    """Returns name, target and inputs of a row."""
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    return cells[0], cells[1], cells[-1]


def _key_of(task: Task) -> tuple[str, str, str]:
    variant = _variant(task)
    return variant.name, f"sm_{task.capability}", inputs_of(variant, task.capability)


def _variant(task: Task) -> Variant:
    return _variants(task.module)[task.index]


def _use_cache(directory: str) -> None:
    knobs.cache.dir = directory


@cache
def _variants(module: str) -> tuple[Variant, ...]:
    return tuple(importlib.import_module(module).variants())


def _types(variant: Variant) -> dict[str, str]:
    """Returns each parameter's type in Triton's notation, in the order of the kernel's parameters. Leaves out the mark
    ":16" of integers (see `Variant`). Raises ValueError if a parameter is missing, unknown or given twice."""
    signature, constexprs, names = set(variant.signature), set(variant.constexprs), set(variant.kernel.arg_names)
    wrong = ((signature | constexprs) ^ names) | (signature & constexprs)
    if wrong:
        raise ValueError(f"{variant.name} must give each parameter exactly once: {', '.join(sorted(wrong))}")
    return {
        name: "constexpr" if name in constexprs else variant.signature[name].removesuffix(":16")
        for name in variant.kernel.arg_names
    }


def _attributes(variant: Variant) -> dict[tuple[int], list[list[object]]]:
    """Returns the attributes that Triton would give, at a launch, to the arguments that are multiples of 16."""
    multiples = {}
    for index, parameter in enumerate(variant.kernel.params):
        kind = variant.signature.get(parameter.name, "")
        if kind.endswith(":16") or (kind.startswith("*") and not parameter.do_not_specialize_on_alignment):
            multiples[(index,)] = [["tt.divisibility", 16]]
    return multiples


if __name__ == "__main__":
    sys.exit(main())
