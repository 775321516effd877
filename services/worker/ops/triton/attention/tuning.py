"""Launch configurations of the attention kernels. They are stored in this file; no worker searches for faster ones.

They are chosen from the compiler's report (`python -m services.worker.ops.triton.compile`). No kernel spills, shared
memory stays within the target's limit, and:

- decode keeps many bytes in flight. For example, an H200 reads 4.8 TB/s with a latency of about 0.8 µs. To use all of
  this bandwidth, 4 MB must be in flight, 30 KB for each of its 132 SMs. Each program buffers num_stages - 1 tiles of
  keys and as many of values: it computes with one tile while the others are in flight. The buffers of all programs on
  an SM (`programs_per_processor`) hold 96 KB or more on Hopper. A program takes one part of a sequence for one KV head
  at a time (`work.py`). While it waits for the first tile of a part, only the SM's other programs can hide the latency.
- ragged has large tiles, because the tensor cores wait for the softmax of each tile. On Hopper a tile has at least 64
  rows: with fewer, Hopper's own matrix instruction (wgmma) is not used. For a head size of 128, Hopper also has room
  for tiles of 128 positions, but the kernel would need all 255 registers, and with some group sizes it would spill.

Decodes with heads of 128 elements are measured on an H200 (ADR 36; `python -m benchmarks.gpu tunings` has the loads):
two programs per SM took 127 us for 32 sequences of 4,096 tokens, and three 131 to 153; with fp8 pages, 83 and 104.
(Tiles of 128 positions took 74 us there, but spill registers with a window and a soft cap.) The others are not
measured. `PagedAttention(config=...)` takes other configurations, for comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import triton
import triton.language as tl

from services.worker.ops.triton.variant import TARGETS


@dataclass(frozen=True, slots=True)
class TileConfig:
    block_m: int  # rows of the matrix products: queries times the query heads that share a KV head
    block_n: int  # positions per tile of keys
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Tuning:
    decode: TileConfig
    programs_per_processor: int  # programs of decode that run side by side on an SM
    ragged: TileConfig
    # Largest number of items (parts of a sequence) per step: a batch that would have more gets longer parts. A program
    # computes one item for one KV head at a time. With 8 KV heads and 1024 items, each program on an H200 does so about
    # 20 times.
    max_items: int = 1024
    tiles_per_part: int = 0  # tiles of decode's block_n keys per item; 0: chosen for each batch (`work.py`)


# Tunings by compute capability (times ten), the largest head size for which the tuning is used, and bytes per element
# of the pages.
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
    (90, 128, 1): Tuning(TileConfig(16, 64, 4, 4), 2, TileConfig(128, 64, 8, 3)),
    (90, 128, 2): Tuning(TileConfig(16, 64, 4, 3), 2, TileConfig(128, 64, 8, 3)),
    (90, 256, 1): Tuning(TileConfig(16, 32, 4, 4), 2, TileConfig(64, 64, 8, 2)),
    (90, 256, 2): Tuning(TileConfig(16, 32, 4, 3), 2, TileConfig(64, 64, 8, 2)),
    (80, 512, 2): Tuning(TileConfig(16, 16, 4, 3), 1, TileConfig(32, 16, 8, 2)),
    (89, 512, 2): Tuning(TileConfig(16, 16, 8, 2), 1, TileConfig(32, 16, 8, 2)),
    (90, 512, 2): Tuning(TileConfig(16, 16, 4, 4), 2, TileConfig(64, 32, 8, 2)),
}
# For a latent cache of up to 512 elements and its rest, by target.
_LATENT: dict[int, Tuning] = {
    80: Tuning(TileConfig(16, 32, 4, 3), 1, TileConfig(32, 32, 8, 2)),
    89: Tuning(TileConfig(16, 32, 8, 2), 1, TileConfig(32, 32, 8, 2)),
    90: Tuning(TileConfig(16, 32, 4, 3), 2, TileConfig(64, 32, 8, 3)),
}
# Query heads of a latent cache that are computed together: the rows of a tensor core's product.
LATENT_GROUP = 16
# For float32 queries, by largest head size; the same on all devices and for pages of any type. float32 is for
# exactness, not speed: its products do not use tensor cores.
_FLOAT32: dict[int, Tuning] = {
    64: Tuning(TileConfig(16, 32, 4, 3), 2, TileConfig(32, 16, 4, 2)),
    128: Tuning(TileConfig(16, 16, 4, 3), 2, TileConfig(32, 16, 4, 2)),
    256: Tuning(TileConfig(16, 16, 8, 3), 1, TileConfig(32, 16, 8, 2)),
    512: Tuning(TileConfig(16, 16, 8, 2), 1, TileConfig(16, 16, 8, 2)),
}
_LATENT_FLOAT32 = Tuning(TileConfig(16, 16, 8, 2), 1, TileConfig(16, 16, 8, 2))


def stored(capability: int, head_dim: int, query_bytes: int, page_bytes: int, *, is_latent: bool = False) -> Tuning:
    """Returns the stored configuration. `capability`: compute capability times ten; `head_dim`: elements of a key or of
    a value, whichever has more; `query_bytes`, `page_bytes`: bytes per element. For a GPU without a configuration of
    its own, returns a configuration that fits the GPU's shared memory. Raises ValueError for capabilities below 8.0,
    because Triton does not support them.
    """
    if capability < 80:
        raise ValueError(f"Triton kernels need compute capability 8.0 or higher; this device has {capability / 10}")
    head_dim = max(64, triton.next_power_of_2(head_dim))
    if query_bytes == 4:
        return _LATENT_FLOAT32 if is_latent else _FLOAT32[head_dim]
    target = 80 if capability in (80, 87) else 90 if 90 <= capability < 120 else 89
    if is_latent:
        return _LATENT[target]
    return _TABLE[target, head_dim, page_bytes]


def block_d(head_dim: int, page_bytes: int) -> int:
    """Returns the head size padded to a power of two. With fp8 pages the result is at least 32, because even and
    odd dimensions are multiplied separately and each product needs at least 16 dimensions."""
    return int(triton.next_power_of_2(max(32, head_dim) if page_bytes == 1 else head_dim))


@dataclass(frozen=True, slots=True)
class Served:
    """One shape and type of queries and pages, for one compute capability, with the parameters that are the same for
    both attention kernels: that for rows with one query, and that for longer rows."""

    name: str
    capability: int
    tuning: Tuning
    signature: dict[str, str]
    constexprs: dict[str, object]
    position_bytes: int  # of one key and one value of one head


_TYPES = {"bf16": (tl.bfloat16, 2), "fp16": (tl.float16, 2), "fp32": (tl.float32, 4), "fp8": (tl.float16, 1)}


def served() -> Iterator[Served]:
    """Yields the shapes for which `compile.py` compiles the kernels, for every target. Head sizes: those of Llama 3 (64
    and 128, four query heads per KV head) and Gemma 2 (256, with window and soft cap), the smallest (16), one that
    must be padded (80), the largest (512), and DeepSeek-V3's latent cache (512 and 64)."""
    for capability in TARGETS:
        for head_dim, q, kv, special, *latent in (
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
            (512, "bf16", "bf16", True),
            (512, "fp32", "fp32", False),
            (576, "bf16", "bf16", False, 512),
            (576, "fp32", "fp32", False, 512),
        ):
            page_bytes = _TYPES[kv][1]
            # The compute type that `PagedAttention` chooses.
            compute, query_bytes = _TYPES[kv if q != "fp32" else q][0], _TYPES[q][1]
            page = f"*{kv}" if kv != "fp8" else "*i16"
            signature = {"q": f"*{q}", "keys": page, "values": page, "out": f"*{q}", "work": "*i32"}
            signature |= {"block_tables": "*i32", "table_stride": "i32", "window": "i32"}
            signature |= {"slopes": "*fp32", "sinks": "*fp32"}
            signature |= dict.fromkeys(("q_token_stride", "q_head_stride", "key_stride", "value_stride"), "i32:16")
            signature |= {"scale": "fp32", "value_scale": "fp32"}
            value_dim = latent[0] if latent else head_dim
            constexprs = {
                "GROUP": LATENT_GROUP if latent else 4,
                "KV_HEADS": 8,
                "LATENT": bool(latent),
                "HEAD_DIM": head_dim,
                "VALUE_DIM": value_dim,
                "BLOCK_SIZE": 16,
                "COMPUTE": compute,
            }
            constexprs |= {"NATIVE": capability >= 89, "WINDOW": special, "SOFT_CAP": 50.0 if special else 0.0}
            block_v = block_d(value_dim, page_bytes)
            constexprs |= {"BLOCK_D": block_v, "BLOCK_V": block_v, "BLOCK_REST": 64 if latent else 16}
            constexprs |= {"CHUNK": 0, "SLOPES": False, "SINKS": special}
            name = f"d{head_dim} q {q} kv {kv}" + (" window cap" if special else "") + (" latent" if latent else "")
            config = stored(capability, head_dim, query_bytes, page_bytes, is_latent=bool(latent))
            elements = head_dim if latent else 2 * head_dim
            yield Served(name, capability, config, signature, constexprs, elements * page_bytes)
