"""Mixtures of experts (Shazeer et al., 2017) as grouped products: all experts in one launch per product.

The choices of all tokens are sorted by expert, so that each expert's rows are consecutive. Choice c is token c // k and
its c % k-th expert.

    order: the choices, sorted by expert       starts[e]: place in `order` of the first choice of expert e

A program computes one tile of one expert's product. It finds its expert from `starts`, on the device: the host knows
neither the choices nor how many rows an expert has, so a launch can be recorded as a CUDA graph. There are as many
programs as the tiles of the least favourable choices need; those without a tile end at once. Consecutive programs
compute all outputs for the same rows, so the rows are read from memory once, and the tiles of one expert find its
matrix in the L2 cache.

As in `matmul.py`, K is never split and its steps depend only on the type. So a token's result has the same bits in any
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.interface import Activate, Activation
from services.worker.ops.triton.activation import gated_activation
from services.worker.ops.triton.linear import DenseLinear
from services.worker.ops.triton.tiles import Tiles, TileTable
from services.worker.ops.triton.variant import Variant

# As in `matmul.py`, except that tiles of many rows are smaller: the last tile of each expert is only partly full.
HALF = TileTable(
    (
        Tiles(rows=16, outs=64, k=64, num_warps=4, num_stages=5),
        Tiles(rows=32, outs=128, k=64, num_warps=4, num_stages=4),
        Tiles(rows=64, outs=128, k=64, num_warps=8, num_stages=3),
    )
)
SINGLE = TileTable(
    (
        Tiles(rows=16, outs=64, k=32, num_warps=4, num_stages=3),
        Tiles(rows=32, outs=64, k=32, num_warps=8, num_stages=3),
        Tiles(rows=64, outs=64, k=32, num_warps=8, num_stages=3),
    )
)
BLOCK = 1024  # columns that a program of `add_choices_kernel` computes
NUM_WARPS = 4


@triton.jit
def experts_kernel(
    x,  # [tokens or choices, K], contiguous
    weights,  # int64 [EXPERTS], addresses of matrices [N, K] of x's type
    biases,  # [EXPERTS, N], read if BIAS
    order,  # int64 [choices]
    starts,  # int64 [EXPERTS + 1]
    y,  # [choices, N]
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,  # experts per token
    FROM_TOKENS: tl.constexpr,  # True: x has tokens, y is sorted. False: x is sorted, y has the order of the choices.
    N: tl.constexpr,
    K: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,  # EXPERTS, rounded up to a power of two
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    out_tiles: tl.constexpr = (N + BLOCK_OUTS - 1) // BLOCK_OUTS
    tile = tl.program_id(0) // out_tiles
    outs = ((tl.program_id(0) % out_tiles) * BLOCK_OUTS + tl.arange(0, BLOCK_OUTS)).to(tl.int64)
    ids = tl.arange(0, BLOCK_EXPERTS)
    first = tl.load(starts + ids, mask=ids < EXPERTS, other=0)
    last = tl.load(starts + ids + 1, mask=ids < EXPERTS, other=0)
    tiles = (last - first + BLOCK_ROWS - 1) // BLOCK_ROWS
    tile_ends = tl.cumsum(tiles)
    expert = tl.sum((tile_ends <= tile).to(tl.int32))
    if expert < EXPERTS:
        is_own = ids == expert
        tile_in_expert = tile - tl.sum(tl.where(is_own, tile_ends - tiles, 0))
        rows = tl.sum(tl.where(is_own, first, 0)) + tile_in_expert * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        end = tl.sum(tl.where(is_own, last, 0))
        held = rows < end
        rows = tl.minimum(rows, end - 1)
        choices = tl.load(order + rows)
        from_rows = choices // CHOSEN if FROM_TOKENS else rows
        to_rows = rows if FROM_TOKENS else choices
        weight = tl.multiple_of(tl.load(weights + expert).to(tl.pointer_type(x.dtype.element_ty)), 16)
        lanes = tl.arange(0, BLOCK_K)
        last_out = tl.minimum(outs, N - 1)
        weight_at = weight + last_out[:, None] * K + lanes[None, :]
        x_at = x + from_rows[None, :] * K + lanes[:, None]
        total = tl.zeros([BLOCK_OUTS, BLOCK_ROWS], tl.float32)
        for start in range(0, K, BLOCK_K):
            if K % BLOCK_K == 0:
                w = tl.load(weight_at + start)
                a = tl.load(x_at + start)
            else:
                w = tl.load(weight_at + start, mask=(start + lanes < K)[None, :], other=0.0)
                a = tl.load(x_at + start, mask=(start + lanes < K)[:, None], other=0.0)
            total = tl.dot(w, a, total, input_precision="ieee")
        if BIAS:
            total += tl.load(biases + expert * N + last_out).to(tl.float32)[:, None]
        to = y + to_rows[:, None] * N + outs[None, :]
        tl.store(to, tl.trans(total.to(y.dtype.element_ty)), mask=held[:, None] & (outs < N)[None, :])


@triton.jit
def add_choices_kernel(
    outputs,  # [tokens, CHOSEN, features]
    weights,  # [tokens, CHOSEN]
    y,  # [tokens, features]
    features,
    CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y = Σ weight · output over a token's experts, in their order, computed in float32 and rounded once."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < features
    total = tl.zeros([BLOCK], tl.float32)
    for index in range(CHOSEN):
        choice = token * CHOSEN + index
        output = tl.load(outputs + choice * features + columns, mask=mask, other=0.0).to(tl.float32)
        total += tl.load(weights + choice).to(tl.float32) * output
    tl.store(y + token * features + columns, total.to(y.dtype.element_ty), mask=mask)


class _Matrices:
    """One matrix of each expert, with their biases."""

    def __init__(self, layers: Sequence[DenseLinear]) -> None:
        self._layers = layers  # holds the memory at `_addresses`
        self.outputs, self._inputs = layers[0].weight.shape
        device = layers[0].weight.device
        self._addresses = torch.tensor([layer.weight.data_ptr() for layer in layers], device=device)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self._biases = torch.stack(biases) if biases else None

    def __call__(self, x: Tensor, order: Tensor, starts: Tensor, num_chosen: int, *, from_tokens: bool) -> Tensor:
        """See `experts_kernel`."""
        num_experts, num_choices = len(self._layers), len(order)
        y = torch.empty((num_choices, self.outputs), dtype=x.dtype, device=x.device)
        tiles = (SINGLE if x.dtype is torch.float32 else HALF).of(triton.cdiv(num_choices, num_experts))
        most_row_tiles = num_choices // tiles.rows + min(num_experts, num_choices)
        experts_kernel[(most_row_tiles * triton.cdiv(self.outputs, tiles.outs),)](
            x, self._addresses, self._addresses if self._biases is None else self._biases, order, starts, y,
            EXPERTS=num_experts, CHOSEN=num_chosen, FROM_TOKENS=from_tokens, N=self.outputs, K=self._inputs,
            BIAS=self._biases is not None, BLOCK_EXPERTS=triton.next_power_of_2(num_experts), BLOCK_ROWS=tiles.rows,
            BLOCK_OUTS=tiles.outs, BLOCK_K=tiles.k, num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        )  # fmt: skip
        return y


class GroupedExperts:
    """See `interface.Experts`."""

    def __init__(self, gate_up: Sequence[DenseLinear], down: Sequence[DenseLinear], activation: Activate) -> None:
        self._gate_up, self._down = _Matrices(gate_up), _Matrices(down)
        self._activate: Callable[[Tensor], Tensor] = (
            partial(gated_activation, kind=activation) if isinstance(activation, Activation) else activation
        )
        device = gate_up[0].weight.device
        self._bounds = torch.arange(len(gate_up) + 1, device=device)

    def __call__(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        num_tokens, num_chosen = expert_ids.shape
        y = torch.empty((num_tokens, self._down.outputs), dtype=x.dtype, device=x.device)
        if not num_tokens:
            return y
        by_expert, order = expert_ids.flatten().sort(stable=True)
        starts = torch.searchsorted(by_expert, self._bounds)
        inner = self._gate_up(x.contiguous(), order, starts, num_chosen, from_tokens=True)
        outputs = self._down(self._activate(inner), order, starts, num_chosen, from_tokens=False)
        add_choices_kernel[(num_tokens, triton.cdiv(y.shape[1], BLOCK))](
            outputs, weights.contiguous(), y, y.shape[1], CHOSEN=num_chosen, BLOCK=BLOCK, num_warps=NUM_WARPS
        )
        return y


def variants() -> Iterator[Variant]:
    for dtype, table, experts, chosen, n, k in (
        ("bf16", HALF, 128, 8, 1536, 2048),  # Qwen3-30B-A3B
        ("bf16", HALF, 8, 2, 4096, 14336),  # Mixtral-8x7B
        ("bf16", HALF, 32, 4, 5760, 2880),  # gpt-oss-20b
        ("fp16", HALF, 128, 8, 1536, 2048),
        ("fp32", SINGLE, 8, 2, 4096, 14336),
    ):
        pointers = dict.fromkeys(("x", "biases", "y"), f"*{dtype}") | dict.fromkeys(
            ("weights", "order", "starts"), "*i64"
        )
        for size, tiles in zip(("few", "some", "many"), table.classes, strict=True):
            yield Variant(
                f"experts {dtype} {experts} of {n} x {k}, {size} rows",
                experts_kernel,
                pointers,
                {"EXPERTS": experts, "CHOSEN": chosen, "FROM_TOKENS": True, "N": n, "K": k, "BIAS": True,
                 "BLOCK_EXPERTS": triton.next_power_of_2(experts), "BLOCK_ROWS": tiles.rows,
                 "BLOCK_OUTS": tiles.outs, "BLOCK_K": tiles.k},
                tiles.num_warps,
                tiles.num_stages,
            )  # fmt: skip
    for dtype in ("bf16", "fp32"):
        yield Variant(
            f"add choices {dtype}",
            add_choices_kernel,
            {**dict.fromkeys(("outputs", "weights", "y"), f"*{dtype}"), "features": "i32:16"},
            {"CHOSEN": 8, "BLOCK": BLOCK},
            NUM_WARPS,
            num_stages=3,
        )
