"""The GPU benchmark: `python -m benchmarks.gpu PART [--quantization fp8] [-- options of the worker]`.

`all` runs the parts in order, each in its own process, and prints one table of their figures.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.figures import HEADER, Figure, line, table
from benchmarks.gpu.interpreter import interpret_kernels
from shared.python_child import child_environment, python_command

# `all` runs the parts in this order. Each must take less than nine minutes on an H200.
PARTS = {
    "ceilings": "the device's limits: memory and matrix units",
    "decode": "decode steps by batch and context",
    "prefill": "prompts by length",
    "kernels": "each kernel's share of a step",
    "attention": "attention alone, compared with torch's",
    "products": "matrix products alone",
    "tunings": "attention's stored launch configurations compared with others",
    "tiles": "quantized products' stored tiles compared with others",
    "skinny": "products of few rows: cuBLAS compared with the stored tunings and others",
    "sampling": "sampling alone, by rows and parameters",
    "idle": "the GPU's idle time between steps",
    "peer": "transformers' generation",
    "serve": "end to end through gRPC",
}
# `all` runs all parts except `tiles` with unquantized weights, and then OF_A_FORM with each of FORMS.
FORMS = ("fp8", "awq")
OF_A_FORM = ("decode", "prefill", "kernels", "products", "tiles", "serve")
OF_FLOATS = tuple(part for part in PARTS if part != "tiles")


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """Returns the benchmark's options, and the worker's options, which follow `--`."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("part", choices=(*PARTS, "all"), help="; ".join(f"{n}: {what}" for n, what in PARTS.items()))
    parser.add_argument("--shape", default="llama-8b", choices=("llama-8b", "llama-1b", "qwen-32b"))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument(
        "--quantization", choices=("fp8", "int8", "int8-weight-only", "awq", "gptq"), help="format of the weights"
    )
    parser.add_argument("--kv-cache-dtype", default="auto", choices=("auto", "fp8"))
    parser.add_argument("--commit", help="commit to store with the figures; default: git's")
    parser.add_argument("--results", type=Path, help="folder for the figures; default: benchmarks/results")
    parser.add_argument(
        "--dry-run", action="store_true", help="run a tiny model on the CPU; the figures are meaningless"
    )
    return parser.parse_args(words[:at]), tuple(words[at + 1 :])


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] in (["smoke"], ["lease"]):
        from benchmarks.gpu import commands

        return commands.main(words)
    options, worker_arguments = parse(words)
    if options.dry_run:
        interpret_kernels()
    if options.part == "all":
        return run_all(options, words)
    import torch

    from benchmarks.gpu import machine
    from benchmarks.gpu.bench import Bench

    if not options.dry_run and not torch.cuda.is_available():
        print("no GPU was found; --dry-run runs the same code on a CPU", file=sys.stderr)
        return 1
    bench = Bench(
        options.shape, options.dtype, options.quantization, options.kv_cache_dtype, worker_arguments, options.dry_run
    )
    start = time.monotonic()
    print(f"\n{options.part}: {PARTS[options.part]}; {bench.name}; {machine.describe(bench.device)}")
    if options.dry_run:
        print("DRY RUN on a CPU with a tiny model and no clock: the figures are meaningless and are not stored")
    print(HEADER, flush=True)
    found = []
    with torch.no_grad():
        for figure in importlib.import_module(f"benchmarks.gpu.{options.part}").measure(bench):
            print(line(figure), flush=True)
            found.append(figure)
    print(f"({time.monotonic() - start:.0f} s)", flush=True)
    if not options.dry_run:
        folder, commit = options.results or machine.RESULTS, options.commit or machine.commit()
        machine.store(folder / file_name(options.part, bench.name), found, bench.device, commit, words)
    return 0


def run_all(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Runs all parts. If a part fails, the others still run, and the failed parts are listed at the end."""
    from benchmarks.gpu import machine
    from benchmarks.gpu.bench import Bench

    if options.quantization is not None:
        runs = [(part, options.quantization) for part in PARTS]
    else:
        runs = [(part, None) for part in OF_FLOATS]
        forms = ("int8",) if options.dry_run else FORMS  # CPUs support no other format
        runs += [(part, form) for form in forms for part in OF_A_FORM]
    rest = [word for word in words if word != "all"]
    found: list[Figure] = []
    failed = []
    for part, form in runs:
        own = [part, *([] if form == options.quantization else ["--quantization", str(form)]), *rest]
        if options.dry_run:
            main(own)
            continue
        command = python_command("benchmarks.gpu", *own)
        if subprocess.run(command, cwd=machine.ROOT, env=child_environment()).returncode:
            failed.append(" ".join(own))
            continue
        name = Bench(options.shape, options.dtype, form, options.kv_cache_dtype).name
        figures = machine.load((options.results or machine.RESULTS) / file_name(part, name))
        found += [replace(figure, name=f"[{form or options.dtype}] {figure.name}") for figure in figures]
    if not options.dry_run:
        print(f"\nall parts\n{table(found)}")
    for part in failed:
        print(f"FAILED: python -m benchmarks.gpu {part}")
    return 1 if failed else 0


def file_name(part: str, name: str) -> str:
    return f"gpu_{part}_{name}.json"


if __name__ == "__main__":
    sys.exit(main())
