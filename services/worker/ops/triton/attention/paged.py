"""Assigns the rows of a batch to the attention kernels and launches them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from services.worker.ops.interface import AttentionBatch, AttentionForm, AttentionShape, AttentionWork, KVPages
from services.worker.ops.triton.attention import tuning
from services.worker.ops.triton.attention.decode import decode_attention
from services.worker.ops.triton.attention.join import parts_at_a_time
from services.worker.ops.triton.attention.ragged import ragged_attention
from services.worker.ops.triton.attention.work import WorkLayout
from services.worker.ops.triton.dependent_launch import launch_arguments
from services.worker.ops.triton.tiles import LEAST_K

MAX_DIM = 512  # elements of a key or a value of one head
MAX_FP8_DIM = 256
MAX_LATENT_REST = 128
NATIVE_FP8 = 89  # the first compute capability (times ten) that has an instruction to convert e4m3
_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@dataclass(frozen=True, slots=True)
class _Kernels:
    """How the kernels are launched for the layers of one shape."""

    shape: AttentionShape
    tiles: tuning.Tuning
    num_programs: int  # of decode
    num_groups: int  # groups of query heads that read the same keys
    decode_rows: int
    queries_per_tile: int  # of ragged
    constants: dict[str, Any]

    @classmethod
    def of(cls, shape: AttentionShape, capability: int, num_processors: int, config: tuning.Tuning | None) -> _Kernels:
        """See `PagedAttention`."""
        _check_shape(shape)
        dims = (shape.head_dim, shape.value_dim)
        group, rest = shape.num_heads // shape.num_kv_heads, 0
        if shape.is_latent:
            group, rest = math.gcd(group, tuning.LATENT_GROUP), shape.head_dim - shape.value_dim
        config = config or tuning.stored(
            capability, max(dims), shape.dtype.itemsize, shape.kv_dtype.itemsize, is_latent=shape.is_latent
        )
        if group > config.ragged.block_m:
            raise ValueError(f"{group} query heads share a KV head; at most {config.ragged.block_m} can")
        # With fp8 pages and 16-bit queries, products are computed in float16. Like bfloat16, float16 represents every
        # e4m3 number exactly, but it rounds the softmax weights less. In Triton's interpreter, which cannot multiply
        # bfloat16, float32 replaces bfloat16.
        compute = shape.dtype
        if shape.kv_dtype.itemsize == 1 and compute.itemsize == 2:
            compute = torch.float16
        if triton.knobs.runtime.interpret and compute is torch.bfloat16:
            compute = torch.float32
        num_groups = shape.num_heads // group
        constants: dict[str, Any] = {
            "GROUP": group,
            "KV_HEADS": num_groups,
            "LATENT": shape.is_latent,
            "HEAD_DIM": shape.head_dim,
            "VALUE_DIM": shape.value_dim,
            "BLOCK_SIZE": shape.block_size,
            "COMPUTE": _TYPES[compute],
            "NATIVE": capability >= NATIVE_FP8,
            "BLOCK_D": tuning.block_d(shape.value_dim if shape.is_latent else shape.head_dim, shape.kv_dtype.itemsize),
            "BLOCK_V": tuning.block_d(shape.value_dim, shape.kv_dtype.itemsize),
            "BLOCK_REST": triton.next_power_of_2(max(LEAST_K, rest)),
        }
        return cls(
            shape, config, num_processors * config.programs_per_processor, num_groups,
            max(config.decode.block_m, triton.next_power_of_2(group)), config.ragged.block_m // group, constants,
        )  # fmt: skip


def _check_shape(shape: AttentionShape) -> None:
    """Raises ValueError for shapes and types that the kernels do not support."""
    heads = f"{shape.num_heads} heads of {shape.head_dim} and {shape.value_dim} elements"
    if shape.num_heads % shape.num_kv_heads:
        raise ValueError(f"{heads} do not fit {shape.num_kv_heads} KV heads")
    if shape.dtype not in _TYPES or shape.kv_dtype not in (shape.dtype, torch.float8_e4m3fn):
        raise ValueError(f"{shape.dtype} queries on {shape.kv_dtype} pages are not supported")
    is_fp8 = shape.kv_dtype.itemsize == 1
    if shape.is_latent and is_fp8:
        raise ValueError("latent pages cannot be fp8")
    if shape.is_latent and not 0 <= shape.head_dim - shape.value_dim <= MAX_LATENT_REST:
        raise ValueError(f"{heads}: a latent key has at most {MAX_LATENT_REST} elements more than its value")
    largest = shape.value_dim if shape.is_latent else max(shape.head_dim, shape.value_dim)
    most = MAX_FP8_DIM if is_fp8 else MAX_DIM
    if not LEAST_K <= min(shape.head_dim, shape.value_dim) <= largest <= most:
        raise ValueError(f"{heads} are not supported: {LEAST_K} to {most} are")


class PagedAttention:
    """Attention of one model on one device. Call `plan` once per step, and the object itself once per layer.

    `decode.py` computes the rows with one query, `ragged.py` all other rows. A batch can have both, so a long sequence
    that decodes in the same batch as a prompt chunk is still divided among many programs. With `batch_invariant`,
    `ragged.py` computes every row; its docstring describes the cost.

    No method waits for the device. A launch depends on the batch only through `num_decodes` and `num_tiles` of
    `AttentionWork`, which are upper bounds, so that a step can be recorded as a CUDA graph. The memory for partial
    results, float32 [max_items, num_heads, value_dim], is allocated once. All calls share it, so they must run on one
    stream.
    """

    def __init__(
        self,
        shapes: Collection[AttentionShape],
        device: torch.device,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        *,
        batch_invariant: bool = False,
        config: tuning.Tuning | None = None,
    ) -> None:
        """`shapes`: the distinct ones of the layers. `config`: launch configuration; None: those that `tuning.py`
        stores. Benchmarks pass others. Raises ValueError for shapes, types and devices that the kernels do not support.
        """
        interpreted = triton.knobs.runtime.interpret
        properties = None if interpreted else torch.cuda.get_device_properties(device)
        capability = 90 if properties is None else 10 * properties.major + properties.minor
        num_processors = 1 if properties is None else properties.multi_processor_count
        self._kernels = [_Kernels.of(shape, capability, num_processors, config) for shape in shapes]
        tunings = [kernels.tiles for kernels in self._kernels]
        self._layout = WorkLayout(
            tile_size=max(one.decode.block_n for one in tunings),
            parallel_items=max(1, min(one.num_programs // one.num_groups for one in self._kernels)),
            queries_per_tile=min(kernels.queries_per_tile for kernels in self._kernels),
            max_items=max(*(one.max_items for one in tunings), max_num_seqs),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            batch_invariant=batch_invariant,
            tiles_per_part=tunings[0].tiles_per_part,
        )
        num_items = 0 if batch_invariant else self._layout.max_items
        most_heads = max(shape.num_heads for shape in shapes)
        most_elements = max(shape.num_heads * shape.value_dim for shape in shapes)
        self._partial_out = torch.empty(num_items * most_elements, dtype=torch.float32, device=device)
        self._partial_lse = torch.empty(num_items * most_heads, dtype=torch.float32, device=device)
        self._num_done = torch.zeros(num_items * most_heads, dtype=torch.int32, device=device)

    @property
    def work_size(self) -> int:
        """Length of `AttentionWork.items`, the same for every batch."""
        return self._layout.size

    def plan(self, query_starts: NDArray[np.int32], positions: NDArray[np.int32]) -> AttentionWork:
        """See `Ops.plan_attention`."""
        return self._layout.lay_out(query_starts, positions)

    def __call__(self, q: Tensor, batch: AttentionBatch, pages: KVPages, form: AttentionForm) -> Tensor:
        """See `Ops.paged_attention`. Tokens that no row owns pad a recorded batch; their output is not written."""
        kernels = self._find(q, pages)
        shape, layout = kernels.shape, self._layout
        work = self._check(shape, q, batch, pages, form)
        keys, values = pages.keys, pages.values
        if shape.kv_dtype.itemsize == 1:
            keys, values = keys.view(torch.int16), values.view(torch.int16)
        out = torch.empty((q.shape[0], shape.num_heads * shape.value_dim), dtype=q.dtype, device=q.device)
        window = form.sliding_window or 0
        # A tensor that is not given is not read: any pointer of its type will do.
        slopes = self._partial_lse if form.slopes is None else form.slopes
        sinks = self._partial_lse if form.sinks is None else form.sinks
        strides = (q.stride(0), q.stride(1), keys.stride(0), values.stride(0), batch.block_tables.stride(0))
        scales = (form.scale * pages.key_scale * math.log2(math.e), pages.value_scale)
        masks = {"WINDOW": window > 0, "CHUNK": form.chunk or 0, "SINKS": form.sinks is not None}
        constants = {**kernels.constants, **masks, "SOFT_CAP": form.soft_cap or 0.0, "SLOPES": form.slopes is not None}
        if work.num_decodes:
            tile = kernels.tiles.decode
            group, block_v = triton.next_power_of_2(constants["GROUP"]), constants["BLOCK_V"]
            decode_attention[(kernels.num_programs,)](
                q, keys, values, out, self._partial_out, self._partial_lse, self._num_done, work.items,
                batch.block_tables, slopes, sinks, *strides, window, *scales, **constants,
                BLOCK_M=kernels.decode_rows, BLOCK_N=tile.block_n, BLOCK_G=group,
                PARTS=parts_at_a_time(group, block_v), num_warps=tile.num_warps, num_stages=tile.num_stages,
                **launch_arguments(),
            )  # fmt: skip
        if work.num_tiles:
            tile = kernels.tiles.ragged
            ragged_attention[(work.num_tiles * kernels.num_groups,)](
                q, keys, values, out, work.items, batch.block_tables, slopes, sinks, *strides, window, *scales,
                **constants, TILES_AT=layout.tiles_at, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
                num_warps=tile.num_warps, num_stages=tile.num_stages,
            )  # fmt: skip
        return out

    def _find(self, q: Tensor, pages: KVPages) -> _Kernels:
        """Returns the kernels of a layer. If there is no such layer, returns any kernels, which `_check` refuses."""
        sizes = (*q.shape[1:], pages.keys.shape[1], pages.value_dim, pages.is_latent)
        for kernels in self._kernels:
            shape = kernels.shape
            if sizes == (shape.num_heads, shape.head_dim, shape.num_kv_heads, shape.value_dim, shape.is_latent):
                return kernels
        return self._kernels[0]

    def _check(
        self, shape: AttentionShape, q: Tensor, batch: AttentionBatch, pages: KVPages, form: AttentionForm
    ) -> AttentionWork:
        """Raises ValueError for arguments that the kernels would misread. Does not read the tensors' data."""
        work = batch.work
        if work is None or work.items.shape != (self.work_size,) or work.items.device != q.device:
            raise ValueError("batch.work must come from plan() of the same PagedAttention and be on the device of q")
        if q.dtype is not shape.dtype or q.shape[1:] != (shape.num_heads, shape.head_dim) or q.stride(2) != 1:
            raise ValueError(
                f"q must be {shape.dtype} [num_tokens, {shape.num_heads}, {shape.head_dim}], last dimension contiguous"
            )
        for x, dim in zip(pages.tensors, (shape.head_dim, shape.value_dim), strict=False):
            page = (shape.num_kv_heads, shape.block_size, dim)
            inside = (shape.block_size * dim, dim, 1)
            if x.dtype is not shape.kv_dtype or x.shape[1:] != page or x.stride()[1:] != inside:
                raise ValueError(f"pages must be {shape.kv_dtype} [num_blocks, {page}], each page contiguous")
        if pages.is_latent != shape.is_latent:
            raise ValueError("pages are latent, or have values beside the keys, in all layers of a shape alike")
        if shape.head_dim == shape.value_dim and pages.keys.stride(0) != pages.values.stride(0):
            raise ValueError("pages of keys and of values must have the same stride")
        if batch.block_tables.dtype is not torch.int32 or batch.block_tables.stride(1) != 1:
            raise ValueError("block tables must be int32 with contiguous rows")
        if form.sliding_window is not None and form.sliding_window < 1:
            raise ValueError(f"a sliding window must have at least 1 position, not {form.sliding_window}")
        for of_heads in (form.slopes, form.sinks):
            if of_heads is not None and (of_heads.dtype is not torch.float32 or of_heads.shape != (shape.num_heads,)):
                raise ValueError(f"slopes and sinks must be float32 [{shape.num_heads}]")
        return work
