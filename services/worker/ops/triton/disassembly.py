"""Counts the instructions of a compiled kernel's inner loop, with the disassembler that comes with Triton.

On every target, an SM has four partitions. Each partition issues one instruction per cycle, for the 32 threads of a
warp (CUDA C++ Programming Guide, section on compute capabilities). A loop takes at least the time to issue its
instructions, and at least the time to read its bytes. If the first time is longer, the kernel does not wait for memory.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import triton.backends.nvidia

_DISASSEMBLER = Path(triton.backends.nvidia.__file__).parent / "bin" / "nvdisasm"
_LABEL = re.compile(r"^(\.L_\w+):$")
_INSTRUCTION = re.compile(r"^/\*[0-9a-f]{4,}\*/\s+(.*?);")
_BRANCH = re.compile(r"\bBRA\b.*\((\.L_\w+)\)")
_PRODUCT = re.compile(r"\b[A-Z]*MMA\b")  # HMMA, IGMMA, QGMMA, ...
_LOCAL = re.compile(r"\b(?:STL|LDL)\b")
PARTS = 4  # partitions of a multiprocessor


def product_loop(cubin: bytes) -> int:
    """Returns the number of instructions per iteration of the innermost loop that uses tensor cores. If several
    innermost loops use them, returns the highest number. Raises ValueError if none does."""
    lengths = [len(body) for body in innermost_loops(_listing(cubin)) if any(map(_PRODUCT.search, body))]
    if not lengths:
        raise ValueError("no loop multiplies on tensor cores")
    return max(lengths)


def spills_in_a_loop(cubin: bytes) -> bool:
    """Returns whether an innermost loop stores or loads registers that were spilled to local memory."""
    return any(any(map(_LOCAL.search, body)) for body in innermost_loops(_listing(cubin)))


def _listing(cubin: bytes) -> Sequence[str]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        result = subprocess.run([_DISASSEMBLER, "-c", file.name], capture_output=True, text=True, check=True)
        return result.stdout.splitlines()


def innermost_loops(listing: Sequence[str]) -> Iterator[list[str]]:
    """Yields the instructions of each innermost loop, from the loop's label to the branch back to this label."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    begins: list[int] = []  # for each loop found so far, the index of its first instruction
    for line in map(str.strip, listing):
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif instruction := _INSTRUCTION.match(line):
            instructions.append(instruction[1])
            branch = _BRANCH.search(instruction[1])
            if branch is None or branch[1] not in labels:
                continue
            begin = labels[branch[1]]
            if not any(begin <= inner for inner in begins):
                yield instructions[begin:]
            begins.append(begin)
