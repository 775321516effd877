"""Emulates PTX instructions (PTX ISA 8.8, chapter 9), so that inline assembly runs on machines without a GPU.

A register has 32 bits, and is an array with one entry per thread. Only the instructions of Quire's kernels are here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Register = NDArray[np.uint32]
_HALF = np.uint32(0xFFFF)


def run(asm: str, inputs: Sequence[Register], num_outputs: int) -> list[Register]:
    """Runs the statements and returns the outputs. Operands $0, $1 ... are the outputs, followed by the inputs.

    Raises KeyError for an unknown instruction.
    """
    registers = {f"${num_outputs + index}": register for index, register in enumerate(inputs)}
    size = len(inputs[0])
    for statement in asm.strip().strip("{}").split(";"):
        if halves := re.match(r"\s*mov.b32 {(\w+), (\w+)}, (\S+)$", statement):
            registers[halves[1]], registers[halves[2]] = (
                registers[halves[3]] & _HALF,
                registers[halves[3]] >> np.uint32(16),
            )
            continue
        words = statement.replace(",", " ").split()
        if not words or words[0] == ".reg":
            continue
        name, target, *sources = words
        values = [
            np.full(size, int(source, 0), np.uint32) if re.match(r"\d", source) else registers[source]
            for source in sources
        ]
        with np.errstate(over="ignore", invalid="ignore"):
            registers[target] = _INSTRUCTIONS[name](*values).astype(np.uint32)
    return [registers[f"${index}"] for index in range(num_outputs)]


def _prmt(a: Register, b: Register, selector: Register) -> Register:
    """Selects bytes: byte i of the result is byte number (nibble i of the selector) of the pair b:a."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.zeros_like(both)
    for index in range(4):
        which = (selector.astype(np.uint64) >> np.uint64(4 * index)) & np.uint64(15)
        assert (which < 8).all(), "sign replication is not emulated"
        result |= ((both >> (which * np.uint64(8))) & np.uint64(0xFF)) << np.uint64(8 * index)
    return result.astype(np.uint32)


def _lop3(a: Register, b: Register, c: Register, table: Register) -> Register:
    result = np.zeros_like(a)
    for index in range(8):
        if int(table[0]) >> index & 1:
            result |= (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
    return result


def _from_f16(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    return bits.view(np.float16).astype(np.float64)


def _to_f16(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    return values.astype(np.float16).view(np.uint16)


def _from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def _to_bf16(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Rounds to nearest even. Asserts that float32 represents the values exactly, so that rounding happens once."""
    bits = values.astype(np.float32).view(np.uint32)
    assert (bits.view(np.float32) == values).all(), "rounded twice"
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def _from_e4m3(a: Register) -> Register:
    codes = torch.from_numpy(a.astype(np.uint16).view(np.uint8)).view(torch.float8_e4m3fn)
    return codes.to(torch.float16).view(torch.int16).numpy().view(np.uint32)


def _on_pairs(operation: Callable[..., NDArray[np.float64]], is_bf16: bool) -> Callable[..., Register]:
    unpack, pack = (_from_bf16, _to_bf16) if is_bf16 else (_from_f16, _to_f16)

    def run_on(*operands: Register) -> Register:
        return pack(operation(*(unpack(operand.view(np.uint16)) for operand in operands))).view(np.uint32)

    return run_on


_INSTRUCTIONS: dict[str, Callable[..., Register]] = {
    "mov.b32": lambda a: a,
    "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or,
    "xor.b32": np.bitwise_xor,
    "shl.b32": np.left_shift,
    "shr.u32": np.right_shift,
    "lop3.b32": _lop3,
    "prmt.b32": _prmt,
    "cvt.rn.f16x2.e4m3x2": _from_e4m3,
    "add.rn.f16x2": _on_pairs(np.add, False),
    "fma.rn.f16x2": _on_pairs(lambda a, b, c: a * b + c, False),
    "fma.rn.bf16x2": _on_pairs(lambda a, b, c: a * b + c, True),
}
