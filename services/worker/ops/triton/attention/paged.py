"""Assigns the rows of a batch to the attention kernels and launches them."""

from __future__ import annotations

import math

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from services.worker.ops.interface import AttentionBatch, AttentionForm, AttentionShape, AttentionWork, KVPages
from services.worker.ops.triton.attention import combine, tuning
from services.worker.ops.triton.attention.decode import decode_attention
from services.worker.ops.triton.attention.ragged import ragged_attention
from services.worker.ops.triton.attention.work import WorkLayout

NATIVE_FP8 = 89  # the first compute capability (times ten) that has an instruction to convert e4m3
_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


class PagedAttention:
    """Attention of one model on one device. Call `plan` once per step, and the object itself once per layer.

    `decode.py` computes the rows with one query, `ragged.py` all other rows. A batch can have both, so a long sequence
    that decodes in the same batch as a prompt chunk is still divided among many programs. With `batch_invariant`,
    `ragged.py` computes every row; its docstring describes the cost.

    No method waits for the device. A launch depends on the batch only through `num_decodes` and `num_tiles` of
    `AttentionWork`, which are upper bounds, so that a step can be recorded as a CUDA graph. The memory for partial
    results, float32 [max_items, num_heads, head_dim], is allocated once. All calls share it, so they must run on one
    stream.
    """

    def __init__(
        self,
        shape: AttentionShape,
        device: torch.device,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        *,
        batch_invariant: bool = False,
        config: tuning.Tuning | None = None,
    ) -> None:
        """`config`: launch configuration; None: the one that `tuning.py` stores. Benchmarks pass others. Raises
        ValueError for shapes, types and devices that the kernels do not support.
        """
        dims = (shape.head_dim, shape.value_dim)
        if shape.num_heads % shape.num_kv_heads or min(dims) < 16 or max(dims) > 256:
            raise ValueError(f"{shape.num_heads} heads of {shape.head_dim} do not fit {shape.num_kv_heads} KV heads")
        if shape.dtype not in _TYPES or shape.kv_dtype not in (shape.dtype, torch.float8_e4m3fn):
            raise ValueError(f"{shape.dtype} queries on {shape.kv_dtype} pages are not supported")
        self._shape = shape
        interpreted = triton.knobs.runtime.interpret
        properties = None if interpreted else torch.cuda.get_device_properties(device)
        capability = 90 if properties is None else 10 * properties.major + properties.minor
        group = shape.num_heads // shape.num_kv_heads
        config = config or tuning.stored(capability, max(dims), shape.dtype.itemsize, shape.kv_dtype.itemsize)
        self._decode = config.decode
        self._ragged = config.ragged
        self._decode_rows = max(config.decode.block_m, triton.next_power_of_2(group))
        if group > config.ragged.block_m:
            raise ValueError(f"{group} query heads share a KV head; at most {config.ragged.block_m} can")
        self._layout = WorkLayout(
            split_size=config.split_size,
            queries_per_tile=config.ragged.block_m // group,
            max_items=max(config.max_items, max_num_seqs),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            batch_invariant=batch_invariant,
        )
        num_processors = 1 if properties is None else properties.multi_processor_count
        self._num_programs = num_processors * config.programs_per_processor
        scratch = (0 if batch_invariant else self._layout.max_items, shape.num_heads)
        self._partial_out = torch.empty((*scratch, shape.value_dim), dtype=torch.float32, device=device)
        self._partial_lse = torch.empty(scratch, dtype=torch.float32, device=device)
        # With fp8 pages and 16-bit queries, products are computed in float16. Like bfloat16, float16 represents every
        # e4m3 number exactly, but it rounds the softmax weights less. In Triton's interpreter, which cannot multiply
        # bfloat16, float32 replaces bfloat16.
        compute = shape.dtype
        if shape.kv_dtype.itemsize == 1 and compute.itemsize == 2:
            compute = torch.float16
        if interpreted and compute is torch.bfloat16:
            compute = torch.float32
        self._constants = {
            "GROUP": group,
            "KV_HEADS": shape.num_kv_heads,
            "HEAD_DIM": shape.head_dim,
            "VALUE_DIM": shape.value_dim,
            "BLOCK_SIZE": shape.block_size,
            "COMPUTE": _TYPES[compute],
            "NATIVE": capability >= NATIVE_FP8,
            "BLOCK_D": tuning.block_d(shape.head_dim, shape.kv_dtype.itemsize),
            "BLOCK_V": tuning.block_d(shape.value_dim, shape.kv_dtype.itemsize),
        }

    @property
    def work_size(self) -> int:
        """Length of `AttentionWork.items`, the same for every batch."""
        return self._layout.size

    def plan(self, query_starts: NDArray[np.int32], positions: NDArray[np.int32]) -> AttentionWork:
        """See `Ops.plan_attention`."""
        return self._layout.lay_out(query_starts, positions)

    def __call__(self, q: Tensor, batch: AttentionBatch, pages: KVPages, form: AttentionForm) -> Tensor:
        """See `Ops.paged_attention`. Tokens that no row owns pad a recorded batch; their output is not written."""
        work = self._check(q, batch, pages, form)
        shape, layout = self._shape, self._layout
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
        constants = {**self._constants, **masks, "SOFT_CAP": form.soft_cap or 0.0, "SLOPES": form.slopes is not None}
        if work.num_decodes:
            decode_attention[(self._num_programs,)](
                q, keys, values, out, self._partial_out, self._partial_lse, work.items, batch.block_tables, slopes,
                sinks, *strides, window, *scales, **constants, BLOCK_M=self._decode_rows, BLOCK_N=self._decode.block_n,
                num_warps=self._decode.num_warps, num_stages=self._decode.num_stages,
            )  # fmt: skip
            combine.combine_splits[(work.num_decodes, shape.num_heads)](
                self._partial_out, self._partial_lse, out, work.items, sinks, window, JOINS_AT=layout.joins_at,
                HEADS=shape.num_heads, VALUE_DIM=shape.value_dim, **masks, PARTS=combine.PARTS,
                BLOCK_V=constants["BLOCK_V"], num_warps=combine.NUM_WARPS,
            )  # fmt: skip
        if work.num_tiles:
            ragged_attention[(work.num_tiles * shape.num_kv_heads,)](
                q, keys, values, out, work.items, batch.block_tables, slopes, sinks, *strides, window, *scales,
                **constants, TILES_AT=layout.tiles_at, BLOCK_M=self._ragged.block_m, BLOCK_N=self._ragged.block_n,
                num_warps=self._ragged.num_warps, num_stages=self._ragged.num_stages,
            )  # fmt: skip
        return out

    def _check(self, q: Tensor, batch: AttentionBatch, pages: KVPages, form: AttentionForm) -> AttentionWork:
        """Raises ValueError for arguments that the kernels would misread. Does not read the tensors' data."""
        shape, work = self._shape, batch.work
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
        if shape.head_dim == shape.value_dim and pages.keys.stride(0) != pages.values.stride(0):
            raise ValueError("pages of keys and of values must have the same stride")
        if pages.is_latent:
            raise ValueError("the GPU kernels need pages of values beside those of keys")
        if batch.block_tables.dtype is not torch.int32 or batch.block_tables.stride(1) != 1:
            raise ValueError("block tables must be int32 with contiguous rows")
        if form.sliding_window is not None and form.sliding_window < 1:
            raise ValueError(f"a sliding window must have at least 1 position, not {form.sliding_window}")
        for of_heads in (form.slopes, form.sinks):
            if of_heads is not None and (of_heads.dtype is not torch.float32 or of_heads.shape != (shape.num_heads,)):
                raise ValueError(f"slopes and sinks must be float32 [{shape.num_heads}]")
        return work
