"""Tests norms, activations, RoPE, sums of segments, an encoder's operations and the small kernels of a step's
inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.cases import Case, Setting
from benchmarks.gpu.smoke.oracle import DTYPES, draw, same, worst_error
from services.worker.ops.interface import Activation, AttentionBatch, AttentionForm, KVPages, Rotation, WholeSequences
from services.worker.ops.reference import ReferenceOps
from services.worker.ops.triton.activation import gated_activation, gated_activation_quantized
from services.worker.ops.triton.block_copy import PagePlace, copy_pages
from services.worker.ops.triton.ops import TritonOps
from services.worker.ops.triton.quantize_rows import quantize_rows
from services.worker.ops.triton.rms_norm import add_rms_norm, add_rms_norm_quantized
from services.worker.ops.triton.slot_mapping import map_slots
from services.worker.ops.triton.token_ids import fill_last_tokens

DEVICE = torch.device("cuda", 0)
FP8 = torch.float8_e4m3fn
PAGE = 16  # tokens
ROWS = 40


def cases(setting: Setting) -> Mapping[str, Callable[[], Iterable[Case]]]:
    return {f"elementwise {name}": partial(_of_type, setting, name) for name in DTYPES} | {"step inputs": _inputs}


def _of_type(setting: Setting, name: str) -> Iterator[Case]:
    dtype = DTYPES[name]
    widths = (48, 128) if setting.dry_run else (64, 128, 576, 2048, 4096, 8192, 16_384)
    for width in widths:
        yield Case(f"rms_norm {name} {width}", partial(_norm, dtype, width))
        yield Case(f"add_rms_norm {name} {width}", partial(_add_norm, dtype, width))
        yield Case(f"layer_norm {name} {width}", partial(_layer_norm, dtype, width))
    for width in (48,) if setting.dry_run else (1536, 14_336):
        for kind in Activation:
            yield Case(f"{kind.name.lower()} gated {name} {width}", partial(_gated_activation, dtype, kind, width))
            if kind is not Activation.CLAMPED_SILU:
                yield Case(f"{kind.name.lower()} {name} {width}", partial(_activation, dtype, kind, width))
        yield Case(f"soft_cap {name} {width}", partial(_soft_cap, dtype, width))
        for to in (torch.int8, FP8):
            yield Case(f"quantize_rows {name} {width} to {to}", partial(_quantize_rows, dtype, width, to))
            yield Case(f"add_rms_norm {name} {width} to {to}", partial(_quantizing_norm, dtype, width, to))
            yield Case(f"silu gated {name} {width} to {to}", partial(_quantizing_activation, dtype, width, to))
        yield Case(f"add_segments {name} {width}", partial(_segments, dtype, width))
    heads = ((2, 1, 16),) if setting.dry_run else ((32, 8, 64), (32, 8, 128), (8, 4, 256))
    for num_heads, num_kv_heads, head_dim in heads:
        for pages in (dtype, FP8):
            title = f"rope {name} {num_heads} x {head_dim}" + (", fp8 pages" if pages is FP8 else "")
            yield Case(title, partial(_rope, dtype, pages, num_heads, num_kv_heads, head_dim))
    for num_heads, num_kv_heads, head_dim in heads:
        for interleaved in (False, True):
            title = f"rope of half of each head {name} {num_heads} x {head_dim}" + (
                ", interleaved" if interleaved else ""
            )
            yield Case(title, partial(_rope_apart, dtype, num_heads, num_kv_heads, head_dim, interleaved))
    for num_heads, head_dim in ((2, 16),) if setting.dry_run else ((12, 32), (12, 64), (16, 64)):
        yield Case(f"full_attention {name} {num_heads} x {head_dim}", partial(_attend, dtype, num_heads, head_dim))


def _inputs() -> Iterator[Case]:
    yield Case("slot_mapping", _slot_mapping)
    yield Case("fill_last_tokens", _fill_last_tokens)
    yield Case("copy_pages on the device", partial(_copy_pages, False))
    yield Case("copy_pages to pinned memory and back", partial(_copy_pages, True))


def _exact() -> ReferenceOps:
    return ReferenceOps(DEVICE, torch.float64)


def _norm(dtype: torch.dtype, width: int) -> float:
    x, weight = draw(ROWS, width, dtype=dtype, device=DEVICE), draw(width, dtype=dtype, device=DEVICE)
    got = TritonOps(DEVICE, dtype).rms_norm(x, weight, 1e-5)
    return worst_error(got, _exact().rms_norm(x.double(), weight.double(), 1e-5))


def _add_norm(dtype: torch.dtype, width: int) -> float:
    x, weight = draw(ROWS, width, dtype=dtype, device=DEVICE), draw(width, dtype=dtype, device=DEVICE)
    residual = draw(ROWS, width, dtype=dtype, device=DEVICE)
    exact = residual.double()
    expected = _exact().add_rms_norm(x.double(), exact, weight.double(), 1e-5)
    got = TritonOps(DEVICE, dtype).add_rms_norm(x, residual, weight, 1e-5)
    return max(worst_error(got, expected), worst_error(residual, exact))


def _layer_norm(dtype: torch.dtype, width: int) -> float:
    """Tests layer_norm with and without a residual."""
    x, weight, bias, residual = (
        draw(*shape, dtype=dtype, device=DEVICE) for shape in ((ROWS, width), (width,), (width,), (ROWS, width))
    )
    ops, exact = TritonOps(DEVICE, dtype), _exact()
    wide = weight.double(), bias.double()
    return max(
        worst_error(ops.layer_norm(x, weight, bias, 1e-5), exact.layer_norm(x.double(), *wide, 1e-5)),
        worst_error(
            ops.layer_norm(x, weight, bias, 1e-5, residual),
            exact.layer_norm(x.double(), *wide, 1e-5, residual.double()),
        ),
    )


def _activation(dtype: torch.dtype, kind: Activation, width: int) -> float:
    x = draw(ROWS, width, dtype=dtype, device=DEVICE)
    return worst_error(TritonOps(DEVICE, dtype).activation(x, kind), _exact().activation(x.double(), kind))


def _soft_cap(dtype: torch.dtype, width: int) -> float:
    x = 3 * draw(ROWS, width, dtype=dtype, device=DEVICE)
    return worst_error(TritonOps(DEVICE, dtype).soft_cap(x, 2.0), _exact().soft_cap(x.double(), 2.0))


def _attend(dtype: torch.dtype, num_heads: int, head_dim: int) -> float:
    """Tests full attention on three sequences of an encoder."""
    lengths = (5, 1, ROWS - 6)
    q, k, v = (draw(ROWS, num_heads, head_dim, dtype=dtype, device=DEVICE) for _ in range(3))
    positions = torch.cat([torch.arange(length) for length in lengths]).int().to(DEVICE)
    starts = torch.tensor([0, 5, 6, ROWS], dtype=torch.int32).to(DEVICE)
    batch = WholeSequences(positions, starts, lengths)
    form = AttentionForm(head_dim**-0.5, sliding_window=9, lookahead=5)
    got = TritonOps(DEVICE, dtype).full_attention(q, k, v, batch, form)
    return worst_error(got, _exact().full_attention(q.double(), k.double(), v.double(), batch, form))


def _gated_activation(dtype: torch.dtype, kind: Activation, width: int) -> float:
    gate_up = draw(ROWS, 2 * width, dtype=dtype, device=DEVICE)
    got = TritonOps(DEVICE, dtype).gated_activation(gate_up, kind)
    return worst_error(got, _exact().gated_activation(gate_up.double(), kind))


def _quantizing_norm(dtype: torch.dtype, width: int, to: torch.dtype) -> float:
    x, residual = (draw(ROWS, width, dtype=dtype, device=DEVICE) for _ in range(2))
    weight = draw(width, dtype=dtype, device=DEVICE)
    expected = quantize_rows(add_rms_norm(x, residual.clone(), weight, 1e-5), to)
    got = add_rms_norm_quantized(x, residual, weight, 1e-5, to)
    # Not the same bits: the squares of a row may be added in another order.
    exact, approximate = (rows.values.double() * rows.scales.double()[:, None] for rows in (expected, got))
    return worst_error(approximate, exact, limit=1e-2)


def _quantizing_activation(dtype: torch.dtype, width: int, to: torch.dtype) -> float:
    gate_up = draw(ROWS, 2 * width, dtype=dtype, device=DEVICE)
    expected = quantize_rows(gated_activation(gate_up, Activation.SILU), to)
    got = gated_activation_quantized(gate_up, Activation.SILU, to)
    return max(same(got.values.float(), expected.values.float()), same(got.scales, expected.scales))


def _quantize_rows(dtype: torch.dtype, width: int, to: torch.dtype) -> float:
    x = draw(ROWS, width, dtype=dtype, device=DEVICE)
    q, scales = quantize_rows(x, to)
    return worst_error(q.double() * scales.double()[:, None], x.double(), limit=2e-2 if to is torch.int8 else 5e-2)


def _segments(dtype: torch.dtype, width: int) -> float:
    x = draw(ROWS, width, dtype=dtype, device=DEVICE)
    starts = np.array([0, 1, 17, ROWS], np.int64)
    totals = torch.zeros(3, width, device=DEVICE)
    exact = torch.zeros(3, width, device=DEVICE, dtype=torch.float64)
    _exact().add_segments(exact, x.double(), starts)
    TritonOps(DEVICE, dtype).add_segments(totals, x, starts)
    return worst_error(totals, exact, limit=1e-5)


def _batch() -> AttentionBatch:
    """Returns three rows of 5, 1 and 34 tokens, which begin at positions 0, 37 and 15."""
    lengths, first = (5, 1, ROWS - 6), (0, 37, 15)
    positions = [torch.arange(at, at + count) for at, count in zip(first, lengths, strict=True)]
    return AttentionBatch(
        positions=torch.cat(positions).int().to(DEVICE),
        query_starts=torch.tensor([0, 5, 6, ROWS], dtype=torch.int32).to(DEVICE),
        block_tables=torch.randperm(12).int().view(3, 4).to(DEVICE),
    )


def _rope(dtype: torch.dtype, pages_dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int) -> float:
    fused = draw(ROWS, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype, device=DEVICE)
    exact = fused.double()
    angles = torch.rand(64, head_dim // 2, device=DEVICE) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    sizes = [num_heads, num_kv_heads, num_kv_heads]
    q, k, v = torch.split(fused, sizes, dim=1)
    exact_q, exact_k, exact_v = torch.split(exact, sizes, dim=1)
    scales = (0.5, 0.25) if pages_dtype is FP8 else (1.0, 1.0)  # different, to detect a swap
    zeros = torch.zeros((12, num_kv_heads, PAGE, head_dim), device=DEVICE)
    pages = KVPages(zeros.to(pages_dtype, copy=True), zeros.to(pages_dtype, copy=True), *scales)
    expected = KVPages(zeros.double(), zeros.double())
    batch = _batch()
    TritonOps(DEVICE, dtype).rope_and_write_kv(q, k, v, Rotation(cos_sin), batch, pages)
    _exact().rope_and_write_kv(exact_q, exact_k, exact_v, Rotation(cos_sin), batch, expected)
    limit = 5e-2 if pages_dtype is FP8 else None
    keys, values = (tensor.float() * scale for tensor, scale in zip((pages.keys, pages.values), scales, strict=True))
    return max(
        worst_error(fused, exact),
        worst_error(keys.to(dtype), expected.keys, limit),
        worst_error(values.to(dtype), expected.values, limit),
    )


def _rope_apart(dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int, interleaved: bool) -> float:
    """Rotates half of each head of q, and writes k as it is."""
    q, k = (draw(ROWS, heads, head_dim, dtype=dtype, device=DEVICE) for heads in (num_heads, num_kv_heads))
    exact_q, batch, ops = q.double(), _batch(), TritonOps(DEVICE, dtype)
    angles = torch.rand(64, head_dim // 4, device=DEVICE) * 6
    rotation = Rotation(torch.cat((angles.cos(), angles.sin()), dim=1), interleaved)
    ops.rope(q, rotation, batch)
    _exact().rope(exact_q, rotation, batch)
    zeros = torch.zeros((12, num_kv_heads, PAGE, head_dim), device=DEVICE, dtype=dtype)
    pages, expected = KVPages(zeros.clone(), zeros.clone()), KVPages(zeros.double(), zeros.double())
    ops.write_kv(k, k, batch, pages)
    _exact().write_kv(k.double(), k.double(), batch, expected)
    return max(
        worst_error(q, exact_q), worst_error(pages.keys, expected.keys), worst_error(pages.values, expected.values)
    )


def _slot_mapping() -> float:
    batch = _batch()
    rows = torch.repeat_interleave(torch.arange(3), torch.tensor([5, 1, ROWS - 6]))
    tables, positions = batch.block_tables.cpu().long(), batch.positions.cpu().long()
    expected = tables[rows, positions // PAGE] * PAGE + positions % PAGE
    return same(map_slots(batch, PAGE).cpu(), expected)


def _fill_last_tokens() -> float:
    token_ids = torch.tensor([7, -1, -3, 9], device=DEVICE)
    last_tokens = torch.tensor([70, 71, 72], device=DEVICE)
    fill_last_tokens(token_ids, last_tokens)
    return same(token_ids.cpu(), torch.tensor([7, 70, 72, 9]))


def _copy_pages(through_the_host: bool) -> float:
    keys, values = (draw(6, 2, PAGE, 32, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    place = PagePlace.of_device([KVPages(keys, values)])
    before = keys.cpu()
    sources, destinations = (_ids(0, 2), _ids(4, 1))
    if through_the_host:
        slots = torch.empty(2, 2 * keys[0].numel(), dtype=keys.dtype, pin_memory=True)
        host = PagePlace.of_slots(slots, place.sizes, DEVICE)
        copy_pages(place, sources, host, _ids(0, 1))
        copy_pages(host, _ids(0, 1), place, destinations)
    else:
        copy_pages(place, sources, place, destinations)
    return same(keys.cpu()[[4, 1]], before[[0, 2]])


def _ids(*values: int) -> Tensor:
    return torch.tensor(values, device=DEVICE)
