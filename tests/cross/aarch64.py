"""Compiles the CPU kernels for Arm and runs them in QEMU: `python -m tests.cross.aarch64 COMPILER...`.

The compiler is Zig's, which compiles for every processor. Kernels of all processors with fused multiply-adds promise
equal bits (services/worker/ops/cpu/vector.h). The unit tests hold those of x86-64 to torch; so equal digests show that
those of Arm are right, too.
"""

from __future__ import annotations

import difflib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from services.worker.ops.cpu import build

PROGRAM = Path(__file__).parent / "kernels.c"
# What a shared library needs and a program does not take.
LIBRARY_FLAGS = ("-fPIC", "-shared")


def program_output(machine: str, level: str, zig: Sequence[str], directory: Path) -> list[str]:
    """What the program for one processor prints: the digest of each kernel's output."""
    target = directory / f"kernels-{machine}"
    # Static, so that QEMU needs no libraries of the other processor.
    compiler = [*zig, "-target", f"{machine}-linux-musl", "-static"]
    flags = [flag for flag in build.FLAGS if flag not in LIBRARY_FLAGS]
    sources = [str(build.SOURCE_DIRECTORY / name) for name in build.SOURCES]
    words = [
        *(*compiler, *flags, *build.spelled(build.LEVELS[machine][level], compiler)),
        *("-DSOURCE_DIGEST=\"\"", f"-I{build.SOURCE_DIRECTORY}", "-o", str(target), str(PROGRAM), *sources),
    ]  # fmt: skip
    subprocess.run(words, check=True)
    runner = [] if machine == platform.machine() else [emulator(machine)]
    return subprocess.run([*runner, target], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def emulator(machine: str) -> str:
    for name in (f"qemu-{machine}", f"qemu-{machine}-static"):
        if (found := shutil.which(name)) is not None:
            return found
    sys.exit(f"qemu-{machine} is not installed (Debian, Ubuntu: sudo apt install qemu-user)")


def main(zig: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        # The library as an Arm machine builds it, for the C library of the oldest systems that wheels are for.
        (library,) = build.build(directory, "aarch64", [*zig, "-target", "aarch64-linux-gnu.2.34"])
        print(f"{library.name}: {library.stat().st_size} bytes, compiled")
        expected = program_output("x86_64", "x86-64-v3", zig, directory)
        found = program_output("aarch64", "armv8", zig, directory)
    if differences := list(difflib.unified_diff(expected, found, "x86-64-v3", "armv8", lineterm="")):
        print("\n".join(differences))
        return 1
    print(f"{sum('threads=' in line for line in found)} outputs of Arm's kernels have the bits of x86-64-v3's")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
