"""Prefetches the beginning of a program's weights into the L2 cache, before the program waits for its inputs.

A product of few rows takes the time to read its weights, which no kernel writes. With `dependent_launch.py`, memory is
busy with them while the previous kernel drains. A program prefetches about as much as it later loads ahead.
"""

from __future__ import annotations

import triton
import triton.language as tl

# A program prefetches at most 512 pieces of 64 bytes, or 32 KB. A piece is smaller than a cache line of 128 bytes,
# because a line consists of sectors, and PTX does not say that all of them are fetched.
_PIECES = tl.constexpr(512)
_PIECE_BYTES = tl.constexpr(64)


@triton.jit
def _prefetch(addresses):
    """Prefetches the cache line of each address. Each must be the address of an element of a tensor."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // dummy $0", "=r,l", [addresses.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def prefetch_rows(
    weight,  # [N, K]
    outs,  # int64 [BLOCK_OUTS], below N
    first_column,
    K: tl.constexpr,
    BLOCK_OUTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Prefetches columns of the outputs `outs`, from `first_column` on. Does nothing unless PDL."""
    if PDL:
        per_piece: tl.constexpr = _PIECE_BYTES * 8 // weight.dtype.element_ty.primitive_bitwidth
        pieces = tl.arange(0, _PIECES // BLOCK_OUTS)
        columns = tl.minimum(first_column + pieces * per_piece, K - 1)
        _prefetch(weight + outs[:, None] * K + columns[None, :])


@triton.jit
def prefetch_steps(
    packed,  # int16 [NUM_STEPS, N, LANES]
    outs,  # int64 [BLOCK_OUTS], below N
    first_step,
    NUM_STEPS: tl.constexpr,
    N: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_OUTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Prefetches steps of the outputs `outs`, from `first_step` on. Does nothing unless PDL."""
    if PDL:
        per_piece: tl.constexpr = _PIECE_BYTES * 8 // packed.dtype.element_ty.primitive_bitwidth
        per_out: tl.constexpr = (LANES + per_piece - 1) // per_piece
        steps = tl.minimum(first_step + tl.arange(0, _PIECES // (BLOCK_OUTS * per_out)), NUM_STEPS - 1)
        at = (steps[:, None] * N + outs[None, :]) * LANES
        _prefetch(packed + at[:, :, None] + tl.arange(0, per_out)[None, None, :] * per_piece)
