"""Compiles the CPU kernels: `python -m services.worker.ops.cpu.build [directory]`.

It builds one shared library per instruction-set level of this machine's architecture, and `library.py` loads the best
level that the processor supports. So a wheel runs on every machine of the architecture for which it was built. The
build needs a C compiler ($CC, gcc, clang, cc, or the package ziglang), but neither torch's headers nor an OpenMP
runtime.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCE_DIRECTORY = Path(__file__).parent
SOURCES = ("attention.c", "elementwise.c", "gemm.c", "layers.c", "quantized.c", "sampling.c", "threads.c")
HEADERS = ("kernels.h", "quantized_tile.h", "tiles.h", "vector.h")

# Each level lists its processor features, because gcc before 11 and clang before 12 do not know -march=x86-64-v3.
_V2 = ("-march=x86-64", "-mssse3", "-msse4.1", "-msse4.2", "-mpopcnt")
_V3 = (*_V2, "-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mlzcnt", "-mmovbe", "-mf16c")
_V4 = (*_V3, "-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")

# Architecture -> level -> compiler flags, lowest level first.
LEVELS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "x86_64": {
        "x86-64-v2": _V2,
        "x86-64-v3": _V3,
        "x86-64-v4": _V4,
    },
    "aarch64": {"armv8": ("-march=armv8-a",)},
}
# Zig's names for the same processors.
_ZIG_SPELLINGS = {"-march=x86-64": "-march=x86_64", "-march=armv8-a": "-mcpu=generic"}
# -ffp-contract=fast fuses multiply-adds the same way in every kernel. Without -fno-math-errno, each sqrtf
# would call a function.
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fPIC",
    "-shared",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror",
)


class BuildError(RuntimeError):
    """There is no compiler, or it failed."""


def levels(machine: str = "") -> Mapping[str, tuple[str, ...]]:
    """Returns the levels of the architecture `machine` (default: this machine's), and the compiler flags of each. An
    unknown architecture has one level, named generic."""
    machine = machine or platform.machine()
    return LEVELS.get({"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine), {"generic": ()})


def library_name(level: str) -> str:
    return f"kernels-{level}.so"


def source_digest() -> str:
    """Returns a digest of the kernels' sources and flags. Each library contains the digest of the sources from which it
    was compiled, so that a stale library is detected."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for name in (*HEADERS, *SOURCES):
        digest.update((SOURCE_DIRECTORY / name).read_bytes())
    return digest.hexdigest()[:16]


def find_compiler() -> list[str]:
    """Returns the command of a C compiler. Raises `BuildError` if there is none."""
    for candidate in (os.environ.get("CC", ""), "gcc", "clang", "cc"):
        words = candidate.split()
        if words and shutil.which(words[0]):
            return words
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-P", "-m", "ziglang", "cc"]
    raise BuildError("no C compiler found (looked for $CC, gcc, clang, cc and the package ziglang)")


def build(directory: Path = SOURCE_DIRECTORY, machine: str = "", compiler: Sequence[str] = ()) -> list[Path]:
    """Compiles one library per instruction-set level into `directory`, and returns the libraries' paths. `machine` and
    `compiler` are for cross compiling; the defaults are this machine's. Raises `BuildError`."""
    compiler = compiler or find_compiler()
    directory.mkdir(parents=True, exist_ok=True)
    libraries = []
    for level, flags in levels(machine).items():
        target = directory / library_name(level)
        # The compiler writes a temporary file, which then replaces the library, because a running worker might have
        # mapped the old file.
        partial = target.with_suffix(f".{os.getpid()}.partial")
        definition = f'-DSOURCE_DIGEST="{source_digest()}"'
        sources = [str(SOURCE_DIRECTORY / name) for name in SOURCES]
        command = [*compiler, *FLAGS, *spelled(flags, compiler), definition, "-o", str(partial), *sources]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise BuildError(f"{' '.join(command)}\n{result.stderr}")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        libraries.append(target)
    return libraries


def spelled(flags: Sequence[str], compiler: Sequence[str]) -> list[str]:
    """Returns a level's compiler flags, spelled as `compiler` expects them."""
    return [_ZIG_SPELLINGS.get(flag, flag) if "ziglang" in compiler else flag for flag in flags]


def build_if_older() -> list[Path]:
    """Returns the libraries in the sources' directory. Compiles them first, unless all of them match the sources and
    are newer than this file. Raises `BuildError`."""
    libraries = [SOURCE_DIRECTORY / library_name(level) for level in levels()]
    own_time, digest = Path(__file__).stat().st_mtime_ns, source_digest().encode()
    if all(path.exists() and path.stat().st_mtime_ns > own_time and digest in path.read_bytes() for path in libraries):
        return libraries
    return build()


def main() -> int:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE_DIRECTORY
    try:
        for library in build(directory):
            print(library)
    except BuildError as error:
        print(f"cannot build the CPU kernels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
