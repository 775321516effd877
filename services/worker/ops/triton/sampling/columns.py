"""Sampling parameters of each slot: one row of int32 columns per slot. Floats are stored as their bits."""

from __future__ import annotations

import triton
import triton.language as tl

TEMPERATURE = tl.constexpr(0)  # float; 0 takes the likeliest token
LOG_MIN_P = tl.constexpr(1)  # float; -inf: no cut
TOP_P = tl.constexpr(2)  # float; 1: no cut
REPETITION = tl.constexpr(3)  # float
PRESENCE = tl.constexpr(4)  # float
FREQUENCY = tl.constexpr(5)  # float
TOP_K = tl.constexpr(6)  # 0: no cut
COUNTS_ROW = tl.constexpr(7)  # row of the token counts that penalties use; -1: no penalties
BIAS_ROW = tl.constexpr(8)  # row of the biases; -1: none
SEED = tl.constexpr(10)  # two columns, low word first
CHOICE = tl.constexpr(12)
WIDTH = tl.constexpr(16)

# Tokens per program, and warps per program.
TILE = 2048
NUM_WARPS = 4

# Bit in a sequence's counts that marks tokens of the prompt. The bits below it count the output's tokens.
IN_PROMPT = tl.constexpr(1 << 30)


@triton.jit
def integer(columns, slot, COLUMN: tl.constexpr):
    return tl.load(columns + slot * WIDTH + COLUMN)


@triton.jit
def number(columns, slot, COLUMN: tl.constexpr):
    return tl.load(columns + slot * WIDTH + COLUMN).to(tl.float32, bitcast=True)


@triton.jit
def is_shaped(columns, slot, mask_row):
    """Returns whether penalties, biases or a mask change the row's logits. If so, the changed logits are read from the
    scratch tensor `shaped`."""
    return (integer(columns, slot, COUNTS_ROW) >= 0) | (integer(columns, slot, BIAS_ROW) >= 0) | (mask_row >= 0)
