"""Inserts sampled tokens into a step's input tokens, on the device.

Steps are launched ahead, before the host knows the tokens that the previous step samples. In place of such a token, the
host writes `-1 - slot`, and this kernel replaces that number by the token that was sampled last for the slot.
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor

from services.worker.ops.triton.dependent_launch import allow_next_launch, launch_arguments, wait_for_inputs
from services.worker.ops.triton.variant import Variant

TILE = 512
NUM_WARPS = 4


@triton.jit(do_not_specialize=["num_tokens"])
def fill_last_tokens_kernel(token_ids, last_tokens, num_tokens, TILE: tl.constexpr, PDL: tl.constexpr):
    allow_next_launch(PDL)
    wait_for_inputs(PDL)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    token = tl.load(token_ids + at, mask=at < num_tokens, other=0)
    drawn = token < 0
    tl.store(token_ids + at, tl.load(last_tokens + (-1 - token), mask=drawn, other=0), mask=drawn)


def fill_last_tokens(token_ids: Tensor, last_tokens: Tensor) -> None:
    """Replaces each negative number `-1 - slot` in token_ids, in place, by the slot's last token. token_ids: int64
    [num_tokens]. last_tokens: int64 [max_num_seqs], see `Sampler.last_tokens`."""
    if len(token_ids):
        fill_last_tokens_kernel[(triton.cdiv(len(token_ids), TILE),)](
            token_ids, last_tokens, len(token_ids), TILE=TILE, num_warps=NUM_WARPS, **launch_arguments()
        )


def variants() -> Iterator[Variant]:
    signature = {"token_ids": "*i64", "last_tokens": "*i64", "num_tokens": "i32"}
    yield Variant("fill_last_tokens", fill_last_tokens_kernel, signature, {"TILE": TILE}, NUM_WARPS, num_stages=3)
