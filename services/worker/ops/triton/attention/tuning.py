"""What each kernel is launched with: stored here, never searched while serving.

Chosen from what the compiler makes of them (`python -m services.worker.ops.triton.compile`): no spills, shared memory
within the target's, and then

- decode: bytes on their way. Keeping 4.8 TB/s busy over some 0.8 µs of latency takes 4 MB, 30 KB for each of an H200's
  132 processors. A program holds num_stages - 1 tiles of keys and of values, there or on their way, and
  `programs_per_processor` of them stand side by side: 96 KB or more, of which one tile per program is being computed
  with. An item of 256 positions is 128 KB (16 bits, a head of 128), so that 32 MB are two items per processor, and the
  first tile of an item, whose latency nothing in its own program hides, is one of four.
- ragged: large tiles, as the tensor cores wait for each tile's softmax; on Hopper at least 64 rows, without which its
  own matrix instruction (wgmma) is not used. 128 positions per tile fit a head of 128 there too, but at 255 registers,
  so that some group sizes spill.

Measured on no device yet; `PagedAttention(config=...)` takes others to compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import triton
import triton.language as tl

from services.worker.ops.triton.variant import TARGETS


@dataclass(frozen=True, slots=True)
class TileConfig:
    block_m: int  # rows of the matrix products: queries, times the heads that share a KV head
    block_n: int  # positions per tile of keys
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Tuning:
    decode: TileConfig
    programs_per_processor: int  # of decode
    ragged: TileConfig
    split_size: int = 256  # positions per item of decode, a multiple of its block_n
    max_items: int = 1024  # of one step, before stretches grow: with 8 KV heads, 20 programs' worth on an H200


# Compute capability (times ten), head size (up to), bytes per element of the pages.
_TABLE: dict[tuple[int, int, int], Tuning] = {
    (80, 64, 1): Tuning(TileConfig(16, 64, 4, 3), 4, TileConfig(128, 64, 8, 3)),
    (80, 64, 2): Tuning(TileConfig(16, 64, 4, 3), 4, TileConfig(128, 64, 8, 3)),
    (80, 128, 1): Tuning(TileConfig(16, 32, 4, 3), 3, TileConfig(64, 32, 8, 3)),
    (80, 128, 2): Tuning(TileConfig(16, 64, 4, 3), 2, TileConfig(128, 32, 8, 3)),
    (80, 256, 1): Tuning(TileConfig(16, 16, 4, 3), 3, TileConfig(32, 16, 4, 3)),
    (80, 256, 2): Tuning(TileConfig(16, 32, 4, 3), 2, TileConfig(64, 32, 8, 2)),
    (89, 64, 1): Tuning(TileConfig(16, 64, 4, 3), 4, TileConfig(128, 64, 8, 3)),
    (89, 64, 2): Tuning(TileConfig(16, 64, 4, 3), 2, TileConfig(128, 64, 8, 3)),
    (89, 128, 1): Tuning(TileConfig(16, 32, 4, 3), 4, TileConfig(128, 32, 8, 3)),
    (89, 128, 2): Tuning(TileConfig(16, 32, 4, 3), 2, TileConfig(128, 32, 8, 3)),
    (89, 256, 1): Tuning(TileConfig(16, 16, 4, 3), 3, TileConfig(64, 32, 8, 2)),
    (89, 256, 2): Tuning(TileConfig(16, 16, 4, 3), 2, TileConfig(64, 32, 8, 2)),
    (90, 64, 1): Tuning(TileConfig(16, 128, 4, 4), 3, TileConfig(128, 128, 8, 3)),
    (90, 64, 2): Tuning(TileConfig(16, 128, 4, 3), 3, TileConfig(128, 128, 8, 3)),
    (90, 128, 1): Tuning(TileConfig(16, 64, 4, 4), 3, TileConfig(128, 64, 8, 3)),
    (90, 128, 2): Tuning(TileConfig(16, 64, 4, 3), 3, TileConfig(128, 64, 8, 3)),
    (90, 256, 1): Tuning(TileConfig(16, 32, 4, 4), 2, TileConfig(64, 64, 8, 2)),
    (90, 256, 2): Tuning(TileConfig(16, 32, 4, 3), 2, TileConfig(64, 64, 8, 2)),
}
# Of float32 queries. For exactness, not for speed: no tensor core takes it. The same on every device, for all pages.
_FLOAT32: dict[int, Tuning] = {
    64: Tuning(TileConfig(16, 32, 4, 3), 2, TileConfig(32, 16, 4, 2)),
    128: Tuning(TileConfig(16, 16, 4, 3), 2, TileConfig(32, 16, 4, 2)),
    256: Tuning(TileConfig(16, 16, 8, 3), 1, TileConfig(32, 16, 8, 2)),
}


def stored(capability: int, head_dim: int, query_bytes: int, page_bytes: int) -> Tuning:
    """`capability`: compute capability times ten; the bytes: per element. Devices that are no target take what fits
    their shared memory. Raises ValueError below capability 8.0, which Triton does not serve.
    """
    if capability < 80:
        raise ValueError(f"Triton kernels need compute capability 8.0; this device has {capability / 10}")
    head_dim = max(64, triton.next_power_of_2(head_dim))
    if query_bytes == 4:
        return _FLOAT32[head_dim]
    target = 80 if capability in (80, 87) else 90 if 90 <= capability < 120 else 89
    return _TABLE[target, head_dim, page_bytes]


def block_d(head_dim: int, page_bytes: int) -> int:
    """The head size, at least 16, padded to a power of two. Of fp8 pages each product takes every other element, and 16
    of them at least."""
    return int(triton.next_power_of_2(max(32, head_dim) if page_bytes == 1 else head_dim))


@dataclass(frozen=True, slots=True)
class Served:
    """What the variants of both kernels have in common."""

    name: str
    capability: int
    tuning: Tuning
    signature: dict[str, str]
    constexprs: dict[str, object]
    position_bytes: int  # a key and a value of one head


_TYPES = {"bf16": (tl.bfloat16, 2), "fp16": (tl.float16, 2), "fp32": (tl.float32, 4), "fp8": (tl.float16, 1)}


def served() -> Iterator[Served]:
    """In the shapes of Llama 3 (64 and 128, four query heads per KV head) and Gemma 2 (256, window and soft cap), and
    the smallest."""
    for capability in TARGETS:
        for head_dim, q, kv, special in (
            (16, "bf16", "fp8", False),
            (64, "bf16", "bf16", False),
            (64, "bf16", "fp8", False),
            (80, "fp16", "fp16", False),
            (128, "bf16", "bf16", False),
            (128, "bf16", "bf16", True),
            (128, "fp16", "fp16", False),
            (128, "bf16", "fp8", False),
            (128, "bf16", "fp8", True),
            (256, "bf16", "bf16", True),
            (256, "bf16", "fp8", True),
            (128, "fp32", "fp32", False),
            (128, "fp32", "fp8", False),
        ):
            page_bytes = _TYPES[kv][1]
            # See `PagedAttention`.
            compute, query_bytes = _TYPES[kv if q != "fp32" else q][0], _TYPES[q][1]
            page = f"*{kv}" if kv != "fp8" else "*i16"
            signature = {"q": f"*{q}", "keys": page, "values": page, "out": f"*{q}", "work": "*i32"}
            signature |= {"block_tables": "*i32", "table_stride": "i32", "window": "i32"}
            signature |= dict.fromkeys(("q_token_stride", "q_head_stride", "page_stride"), "i32:16")
            signature |= {"scale": "fp32", "value_scale": "fp32"}
            constexprs = {"GROUP": 4, "KV_HEADS": 8, "HEAD_DIM": head_dim, "BLOCK_SIZE": 16, "COMPUTE": compute}
            constexprs |= {"NATIVE": capability >= 89, "WINDOW": special, "SOFT_CAP": 50.0 if special else 0.0}
            constexprs |= {"BLOCK_D": block_d(head_dim, page_bytes)}
            name = f"d{head_dim} q {q} kv {kv}" + (" window cap" if special else "")
            config = stored(capability, head_dim, query_bytes, page_bytes)
            yield Served(name, capability, config, signature, constexprs, 2 * head_dim * page_bytes)
