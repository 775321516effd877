"""Lists the variants of the sampling kernels to compile ahead of time: for vocabularies of 32,000 to 262,144 tokens,
and logits in bfloat16 or float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import triton

from services.worker.ops.triton.sampling import threshold, top
from services.worker.ops.triton.sampling.columns import NUM_WARPS, TILE
from services.worker.ops.triton.sampling.cuts import brackets_kernel, collect_kernel, pivots_kernel
from services.worker.ops.triton.sampling.draw import draw_kernel, finish_kernel
from services.worker.ops.triton.sampling.shape import shape_kernel
from services.worker.ops.triton.sampling.threshold import threshold_kernel
from services.worker.ops.triton.sampling.top import top_rows_kernel, top_tiles_kernel
from services.worker.ops.triton.variant import Variant

VOCABULARIES = (32_000, 128_256, 262_144)
# Types of all sampling kernels' parameters except `logits`, which has the model's type.
TYPES = {
    "logits_stride": "i32:16", "columns": "*i32", "slots": "*i32", "positions": "*i32", "mask_rows": "*i32",
    "counts": "*i32", "biases": "*fp32", "masks": "*i32", "shaped": "*fp32", "raw_peaks": "*fp32", "peaks": "*fp32",
    "masses": "*fp32", "found": "*i32", "offsets": "*i32", "lists": "*fp32", "cut": "*i32", "scores": "*fp32",
    "tokens": "*i32", "drawn": "*i64", "valid": "*u8", "last_tokens": "*i64", "rows": "*i64", "keys": "*i64",
    "sums": "*fp32", "logprobs": "*fp32", "top_tokens": "*i64", "top_logprobs": "*fp32", "normalizers": "*fp32",
    "vocab_size": "i32:16", "tiles": "i32", "mask_words": "i32",
}  # fmt: skip


def variants() -> Iterator[Variant]:
    for dtype, vocabularies in (("bf16", VOCABULARIES), ("fp32", VOCABULARIES[1:2])):
        for vocab_size in vocabularies:
            tiles = {"TILES": triton.next_power_of_2(triton.cdiv(vocab_size, TILE))}
            both = {"TILE": TILE, **tiles}
            name = f"{dtype} {vocab_size}"
            yield _variant(f"draw greedy {name}", draw_kernel, dtype, {"GREEDY": True, "CUTS": False, **both})
            yield _variant(f"draw {name}", draw_kernel, dtype, {"GREEDY": False, "CUTS": False, **both})
            yield _variant(f"draw cut {name}", draw_kernel, dtype, {"GREEDY": False, "CUTS": True, **both})
            yield _variant(f"pivots {name}", pivots_kernel, dtype, both)
            yield _variant(f"collect {name}", collect_kernel, dtype, both)
            yield _variant(f"threshold {name}", threshold_kernel, dtype, tiles, threshold.NUM_WARPS)
            yield _variant(f"top_rows {name}", top_rows_kernel, dtype, {"COUNT": top.TOP, **tiles}, top.NUM_WARPS)
        yield _variant(f"shape {dtype}", shape_kernel, dtype, {"TILE": TILE})
        yield _variant(f"top_tiles {dtype}", top_tiles_kernel, dtype, {"COUNT": top.TOP, "TILE": TILE}, top.NUM_WARPS)
    for vocab_size in VOCABULARIES:
        tiles = {"TILES": triton.next_power_of_2(triton.cdiv(vocab_size, TILE))}
        yield _variant(f"brackets {vocab_size}", brackets_kernel, "", tiles)
        yield _variant(f"finish {vocab_size}", finish_kernel, "", tiles, num_warps=1)


def _variant(
    name: str, kernel: Any, dtype: str, constexprs: Mapping[str, object], num_warps: int = NUM_WARPS
) -> Variant:
    types = {**TYPES, "logits": f"*{dtype}"}
    signature = {parameter: types[parameter] for parameter in kernel.arg_names if parameter not in constexprs}
    return Variant(name, kernel, signature, constexprs, num_warps, num_stages=3)
