"""Launch configurations of the attention kernels. They are stored here; nothing is searched while serving.

They are chosen from the compiler's report (`python -m services.worker.ops.triton.compile`): no spills, shared memory
within the target's limit, and then

- decode: many bytes being loaded at a time. Using 4.8 TB/s at about 0.8 µs of latency takes 4 MB, 30 KB for each of an
  H200's 132 processors. A program holds num_stages - 1 tiles of keys and of values, loaded or being loaded, and
  `programs_per_processor` programs run side by side: 96 KB or more, of which each program is computing with one tile.
  An item of 256 positions is 128 KB (16 bits, a head of 128), so 32 MB are two items per processor. Nothing in a
  program hides the latency of an item's first tile, which is one of four.
- ragged: large tiles, because the tensor cores wait for each tile's softmax. On Hopper at least 64 rows: with fewer,
  its own matrix instruction (wgmma) is not used. There 128 positions per tile fit a head of 128 too, but at 255
  registers, so that some group sizes spill.

They are not measured on a device yet. `PagedAttention(config=...)` takes other configurations, for comparisons.
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
    programs_per_processor: int  # programs of decode that run side by side
    ragged: TileConfig
    split_size: int = 256  # positions per item of decode, a multiple of decode's block_n
    max_items: int = 1024  # most items per step before stretches grow: with 8 KV heads, 20 per program on an H200


# Keys: compute capability (times ten), largest head size, bytes per element of the pages.
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
# For float32 queries, on all devices and pages. They are for exactness, not speed: no tensor core takes them.
_FLOAT32: dict[int, Tuning] = {
    64: Tuning(TileConfig(16, 32, 4, 3), 2, TileConfig(32, 16, 4, 2)),
    128: Tuning(TileConfig(16, 16, 4, 3), 2, TileConfig(32, 16, 4, 2)),
    256: Tuning(TileConfig(16, 16, 8, 3), 1, TileConfig(32, 16, 8, 2)),
}


def stored(capability: int, head_dim: int, query_bytes: int, page_bytes: int) -> Tuning:
    """Returns the stored configuration. `capability`: compute capability times ten; `query_bytes`, `page_bytes`: bytes
    per element. For a GPU without a configuration of its own, returns a configuration that fits the GPU's shared
    memory. Raises ValueError below capability 8.0, which Triton does not support.
    """
    if capability < 80:
        raise ValueError(f"Triton kernels need compute capability 8.0; this device has {capability / 10}")
    head_dim = max(64, triton.next_power_of_2(head_dim))
    if query_bytes == 4:
        return _FLOAT32[head_dim]
    target = 80 if capability in (80, 87) else 90 if 90 <= capability < 120 else 89
    return _TABLE[target, head_dim, page_bytes]


def block_d(head_dim: int, page_bytes: int) -> int:
    """Returns the head size padded to a power of two, at least 16. Each product over fp8 pages takes every other
    element, and at least 16 of them."""
    return int(triton.next_power_of_2(max(32, head_dim) if page_bytes == 1 else head_dim))


@dataclass(frozen=True, slots=True)
class Served:
    """Parameters that the variants of both kernels share."""

    name: str
    capability: int
    tuning: Tuning
    signature: dict[str, str]
    constexprs: dict[str, object]
    position_bytes: int  # one key and one value of one head


_TYPES = {"bf16": (tl.bfloat16, 2), "fp16": (tl.float16, 2), "fp32": (tl.float32, 4), "fp8": (tl.float16, 1)}


def served() -> Iterator[Served]:
    """Yields the served shapes: Llama 3 (64 and 128, four query heads per KV head), Gemma 2 (256, window and soft cap),
    and the smallest."""
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
            # The compute type that `PagedAttention` chooses.
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
