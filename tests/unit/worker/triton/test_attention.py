"""Paged attention in Triton against float64: shapes, types and borders, and what must not be touched."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from services.worker.ops.interface import AttentionBatch, AttentionForm, AttentionShape, AttentionWork, KVPages
from services.worker.ops.triton.attention import paged, tuning
from services.worker.ops.triton.attention.join import parts_at_a_time
from services.worker.ops.triton.attention.paged import PagedAttention
from tests.unit.worker.triton.attention_steps import (
    FP8,
    SMALL,
    UNOWNED,
    Model,
    Row,
    Step,
    Text,
    lay_out,
    random_rows,
    tolerance,
)

# Rows of a block that no query fills may see nothing, and exp2 overflows where it should: numpy remarks on both.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TYPES = [
    (torch.float32, torch.float32),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, FP8),
    (torch.float32, FP8),
]
WINDOWS = [None, 1, 20, 70]
HEAD_DIMS = [64, 80, 96, 112, 128, 192, 256]
# Around the borders of tiles (16) and stretches (32): positions of rows of one query; (computed, scheduled) of others.
DECODES = [0, 15, 16, 31, 32, 33, 63, 64, 95, 100, 127]
CHUNKS = [(0, 2), (0, 33), (5, 8), (31, 2), (16, 32), (60, 41), (0, 64)]


def pairs_of(*sizes: int) -> list[tuple[int, ...]]:
    """Few combinations in which any two choices of different kinds meet: each time the one with most new pairs."""

    def pairs(case: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(itertools.combinations(enumerate(case), 2))

    candidates = list(itertools.product(*map(range, sizes)))
    missing = set().union(*map(pairs, candidates))
    cases = []
    while missing:
        cases.append(max(candidates, key=lambda case: len(pairs(case) & missing)))
        missing -= pairs(cases[-1])
    return cases


def models() -> list[Model]:
    groups, block_sizes, soft_caps = (1, 3, 4, 8), (16, 32, 128), (None, 20.0)
    return [
        Model(
            groups[group],
            2 if groups[group] == 1 else 1,
            HEAD_DIMS[head_dim],
            block_sizes[block_size],
            *TYPES[types],
            WINDOWS[window],
            soft_caps[soft_cap],
        )
        for types, head_dim, window, group, block_size, soft_cap in pairs_of(
            len(TYPES), len(HEAD_DIMS), len(WINDOWS), len(groups), len(block_sizes), len(soft_caps)
        )
    ]


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    """In this mode torch.empty fills with NaN: outputs and scratch."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def assert_exact(step: Step, out: torch.Tensor) -> None:
    owned = out[: step.num_tokens].double().cpu()
    rtol, atol = tolerance(step.model.dtype)
    torch.testing.assert_close(owned, step.expected(), rtol=rtol, atol=atol)


@pytest.mark.parametrize(("index", "model"), list(enumerate(models())), ids=str)
def test_a_mixed_batch_equals_the_exact_attention_and_nothing_else_is_written(
    device: torch.device, index: int, model: Model
) -> None:
    decodes = [(DECODES[(3 * index + offset) % len(DECODES)], 1) for offset in (0, 4, 8)]
    chunks = [CHUNKS[(2 * index + offset) % len(CHUNKS)] for offset in (0, 1)]
    step = lay_out(model, random_rows(model, [decodes[0], chunks[0], *decodes[1:], chunks[1]], index), device, index)
    before = step.inputs()
    attention = model.attention(device)
    work = attention.plan(step.query_starts, step.positions)
    assert (work.num_decodes, work.num_tiles > 0) == (3, True)
    out = step.run(attention)
    assert_exact(step, out)
    assert out[step.num_tokens :].isnan().all()
    assert all(torch.equal(*pair) for pair in zip(step.inputs(), before, strict=True))
    num_items = int(work.items[0])
    assert attention._partial_out[num_items * model.num_heads * model.of_values :].isnan().all()
    assert attention._partial_lse[num_items * model.num_heads :].isnan().all()


FORMS = [
    Model(value_dim=96),
    Model(head_dim=192, value_dim=128, dtype=torch.float16, kv_dtype=torch.float16),
    Model(head_dim=64, value_dim=32, dtype=torch.bfloat16, kv_dtype=FP8),
    Model(chunk=48),
    Model(chunk=7, dtype=torch.bfloat16, kv_dtype=torch.bfloat16),
    Model(has_slopes=True),
    Model(has_slopes=True, soft_cap=20.0, window=70),
    Model(has_sinks=True),
    Model(has_sinks=True, window=40, group=4, num_kv_heads=1, dtype=torch.bfloat16, kv_dtype=torch.bfloat16),
    Model(has_sinks=True, has_slopes=True, chunk=100, value_dim=80),
    Model(head_dim=512, value_dim=384),
    # A latent cache of one group of heads.
    Model(4, 1, 96, value_dim=64, is_latent=True),
]
# Latent caches of three groups of 8 heads, and of two of 16. They take as long as all others together.
WIDE_FORMS = [
    Model(24, 1, 80, dtype=torch.float16, kv_dtype=torch.float16, value_dim=64, is_latent=True),
    Model(
        32, 1, 168, dtype=torch.bfloat16, kv_dtype=torch.bfloat16, window=40, value_dim=64, has_sinks=True,
        is_latent=True,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "batch_invariant"),
    [*itertools.product(FORMS, (False, True)), *zip(WIDE_FORMS, (False, True), strict=True)],
    ids=str,
)
def test_every_form_equals_the_exact_attention(device: torch.device, model: Model, batch_invariant: bool) -> None:
    step = lay_out(model, random_rows(model, [(100, 1), (60, 41), (0, 33), (31, 1), (0, 1)]), device)
    before = step.inputs()
    out = step.run(model.attention(device, batch_invariant=batch_invariant))
    assert_exact(step, out)
    assert out[step.num_tokens :].isnan().all()
    assert all(torch.equal(*pair) for pair in zip(step.inputs(), before, strict=True))


@pytest.mark.parametrize("batch_invariant", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_layers_of_several_shapes_share_a_plan(device: torch.device, batch_invariant: bool) -> None:
    models = [
        Model(),
        Model(4, 1, 128),
        Model(head_dim=64, value_dim=32),
        Model(16, 1, 96, value_dim=64, is_latent=True),
    ]
    steps = [lay_out(model, random_rows(model, [(100, 1), (60, 41), (31, 1)]), device) for model in models]
    attention = PagedAttention(
        [model.shape for model in models], device, 16, 256, batch_invariant=batch_invariant, config=SMALL
    )
    work = attention.plan(steps[0].query_starts, steps[0].positions).to(device)
    for step in steps:
        assert_exact(step, step.run(attention, work))


@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.thorough), 600])
def test_more_parts_are_joined_than_at_once(device: torch.device, window: int | None) -> None:
    """The greatest scores come first, so that the later parts weigh little, or last."""
    model = Model(1, 2, window=window)
    early, late = random_rows(model, [(35 * 20, 1), (35 * 20 + 3, 1)])
    early.text.k[:400].mul_(4)
    late.text.k[600:].mul_(4)
    assert (window or early.end) // 32 > parts_at_a_time(1, model.head_dim)
    step = lay_out(model, [early, late], device)
    attention = model.attention(device)
    assert_exact(step, step.run(attention))
    assert_exact(step, step.run(attention))  # the counters are 0 again


@pytest.mark.parametrize("window", [None, 5, 40])
def test_parts_are_as_many_as_keep_the_gpu_busy(device: torch.device, window: int | None) -> None:
    model = Model(window=window)
    step = lay_out(model, random_rows(model, [(700, 1), (90, 1), (15, 1), (16, 1)]), device)
    config = replace(SMALL, programs_per_processor=40, tiles_per_part=0)
    attention = model.attention(device, config)
    items = attention.plan(step.query_starts, step.positions).items
    assert int(items[0]) > 10
    assert_exact(step, step.run(attention))


@pytest.mark.parametrize("window", [None, 33])
def test_parts_grow_where_there_would_be_too_many(device: torch.device, window: int | None) -> None:
    model = Model(window=window)
    step = lay_out(model, random_rows(model, [(length - 1, 1) for length in (200, 32, 65, 6, 131)]), device)
    attention = model.attention(device, replace(SMALL, max_items=8))  # though one per sequence always fits: 16
    num_items = int(attention.plan(step.query_starts, step.positions).items[0])
    assert num_items == 4 + 1 + 2 + 1 + 3  # of four tiles; of two, they would be 17
    assert_exact(step, step.run(attention))


@pytest.mark.parametrize(
    "model",
    [
        Model(4, 1, 128, 16, torch.bfloat16, torch.bfloat16),
        Model(2, 1, 256, 32, torch.bfloat16, FP8, 100),
        Model(16, 1, 576, 32, torch.bfloat16, torch.bfloat16, value_dim=512, is_latent=True),
    ],
)
def test_stored_configurations_give_the_same(device: torch.device, model: Model) -> None:
    step = lay_out(model, random_rows(model, [(300, 1), (0, 150), (255, 1), (200, 80)]), device)
    assert_exact(step, step.run(model.attention(device, config=None)))


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_recorded_launch_serves_smaller_batches(device: torch.device, batch_invariant: bool) -> None:
    """What was recorded is as large as its bounds, and does what the work list's counts say: the rest of it may be left
    from another batch, here from one whose first sequence was shorter or longer.
    """
    model = Model(window=50)
    step = lay_out(model, random_rows(model, [(40, 1), (100, 1), (7, 1)]), device)
    attention = model.attention(device, batch_invariant=batch_invariant)
    work = attention.plan(step.query_starts, step.positions).to(device)
    assert (work.num_decodes, work.num_tiles) == ((0, 3) if batch_invariant else (3, 0))
    layout, items = attention._layout, work.items.clone()
    num_items, num_tiles = items[:2].tolist()
    items[2 : layout.tiles_at].view(-1, 6)[num_items:] = torch.tensor([0, 0, 8, 0, 1, 0])
    items[layout.tiles_at :].view(-1, 4)[num_tiles:] = torch.tensor([0, 0, 8, 1])
    bounds = (0, 8) if batch_invariant else (8, 0)
    out = step.run(attention, AttentionWork(items, *bounds))
    assert torch.equal(out[: step.num_tokens], step.run(attention, work)[: step.num_tokens])
    assert out[step.num_tokens :].isnan().all()


def test_nan_reaches_its_own_sequence_only(device: torch.device) -> None:
    model = Model()
    broken, whole, chunk, other = random_rows(model, [(70, 1), (70, 1), (20, 20), (20, 20)])
    broken.text.v[33, 0, 5] = torch.nan
    chunk.text.k[30, 1, 5] = torch.nan
    step = lay_out(model, [broken, whole, chunk, other], device)
    heads = step.run(model.attention(device))[: step.num_tokens].view(step.num_tokens, model.num_heads, -1)
    assert heads[0, :2, 5].isnan().all()
    assert not heads[0, 2:].isnan().any()
    assert heads[2 + 10 : 2 + 20, 2:].isnan().all()  # from the broken key's position on
    assert not heads[2 : 2 + 20, :2].isnan().any()
    assert not heads[[1, *range(22, 42)]].isnan().any()


@pytest.mark.parametrize("soft_cap", [None, 20.0])
@pytest.mark.parametrize("factor", [300.0, -300.0])
def test_large_scores_neither_overflow_nor_outlast_the_window(
    device: torch.device, soft_cap: float | None, factor: float
) -> None:
    for window in (None, 40):
        model = Model(window=window, soft_cap=soft_cap)
        rows = random_rows(model, [(129, 1), (100, 30)])
        for row in rows:
            row.text.k[:60].mul_(factor)
        step = lay_out(model, rows, device)
        out = step.run(model.attention(device))[: step.num_tokens]
        torch.testing.assert_close(out.double().cpu(), step.expected(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_every_fp8_number_is_read_exactly(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, native: bool
) -> None:
    """A sequence of one token is its value. `native`: else as GPUs do it that do not convert fp8."""
    if not native:
        monkeypatch.setattr(paged, "NATIVE_FP8", 1000)
    model = Model(1, 4, 64, 16, dtype, FP8)
    numbers = torch.arange(256, dtype=torch.uint8).view(FP8).float().nan_to_num(0.0)
    text = Text(torch.ones(1, 4, 64), torch.ones(1, 4, 64), numbers.view(1, 4, 64) * 0.25)
    step = lay_out(model, [Row(text, 0, 1)], device)
    assert torch.equal(step.run(model.attention(device))[0].float().cpu(), numbers * 0.25)


@pytest.mark.parametrize("soft_cap", [None, 5.0])
def test_without_an_instruction_for_fp8_attention_is_as_exact(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, soft_cap: float | None
) -> None:
    """Keys and values are read times a factor then, which neither scores nor the output may show."""
    monkeypatch.setattr(paged, "NATIVE_FP8", 1000)
    model = Model(head_dim=80, dtype=torch.float16, kv_dtype=FP8, window=50, soft_cap=soft_cap)
    step = lay_out(model, random_rows(model, [(100, 1), (20, 30)]), device)
    assert_exact(step, step.run(model.attention(device)))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("queries", [1, 9])
def test_what_is_not_a_number_in_fp8_pages_reaches_who_sees_it(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, native: bool, queries: int
) -> None:
    if not native:
        monkeypatch.setattr(paged, "NATIVE_FP8", 1000)
    model = Model(dtype=torch.float16, kv_dtype=FP8)
    for broken in ("k", "v"):
        rows = random_rows(model, [(60, queries), (60, queries)])
        getattr(rows[0].text, broken)[20] = torch.nan
        step = lay_out(model, rows, device)
        out = step.run(model.attention(device))[: step.num_tokens]
        assert not out[:queries].isfinite().any()
        assert out[queries:].isfinite().all()


def test_layers_may_lie_in_one_allocation(device: torch.device) -> None:
    model = Model()
    step = lay_out(model, random_rows(model, [(50, 1), (10, 20)]), device)
    num_blocks = step.pages.keys.shape[0]
    cache = torch.full((num_blocks, 2, *step.pages.keys.shape[1:]), torch.nan, device=device)
    cache[:, 0], cache[:, 1] = step.pages.keys, step.pages.values
    apart = replace(step, pages=KVPages(cache[:, 0], cache[:, 1]))
    attention = model.attention(device)
    assert torch.equal(apart.run(attention)[: step.num_tokens], step.run(attention)[: step.num_tokens])


def test_pages_may_lie_past_the_reach_of_32_bits(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("takes 5 GB")
    model = Model(dtype=torch.float16, kv_dtype=torch.float16)
    step = lay_out(model, random_rows(model, [(50, 1), (10, 20)]), device)
    keys = step.pages.keys
    stride = 2**31 // (keys.shape[0] - 2)  # the last pages begin past it
    stride -= stride % 16
    cache = torch.zeros(keys.shape[0] * stride + 2 * keys[0].numel(), dtype=torch.float16, device=device)
    inside = (stride, *keys.stride()[1:])
    far = KVPages(cache.as_strided(keys.shape, inside), cache.as_strided(keys.shape, inside, keys[0].numel()))
    far.keys.copy_(keys)
    far.values.copy_(step.pages.values)
    attention = model.attention(device)
    assert torch.equal(
        replace(step, pages=far).run(attention)[: step.num_tokens], step.run(attention)[: step.num_tokens]
    )


def test_a_graph_replays_on_other_lengths(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("needs CUDA graphs")
    model = Model(dtype=torch.float16, kv_dtype=torch.float16)
    attention = model.attention(device)
    # Both steps' sequences are of as many blocks, so that inputs can be copied over.
    recorded, replayed = (
        lay_out(model, random_rows(model, [(a, 1), (b, 1)], seed), device, seed)
        for seed, a, b in ((0, 127, 17), (1, 114, 30))
    )
    work = attention.plan(recorded.query_starts, recorded.positions).to(device)
    batch = recorded.batch(device, work)
    recorded.attend(attention, batch)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = recorded.attend(attention, batch)
    for mine, other in (
        (recorded.fused, replayed.fused),
        (recorded.pages.keys, replayed.pages.keys),
        (recorded.pages.values, replayed.pages.values),
        (recorded.block_tables, replayed.block_tables),
        (work.items, attention.plan(replayed.query_starts, replayed.positions).items),
    ):
        mine.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    assert_exact(replayed, out)


def test_what_the_kernels_would_misread_is_refused(device: torch.device) -> None:
    model = Model()
    step = lay_out(model, random_rows(model, [(20, 1)]), device)
    attention = model.attention(device)
    work = attention.plan(step.query_starts, step.positions).to(device)
    q, pages, tables = step.fused[:, : model.num_heads], step.pages, step.block_tables
    batch = AttentionBatch(torch.from_numpy(step.positions), torch.from_numpy(step.query_starts), tables, work)
    assert attention(q, batch, pages, AttentionForm(1.0)).shape == (1 + UNOWNED, 256)
    for bad in (q.half(), q[:, :3], q[..., :32], q.transpose(1, 2)):
        with pytest.raises(ValueError, match="q must be"):
            attention(bad, batch, pages, AttentionForm(1.0))
    for bad_pages in (
        KVPages(pages.keys.half(), pages.values.half()),
        KVPages(pages.keys.transpose(1, 2), pages.values.transpose(1, 2)),
        KVPages(pages.keys, pages.values[:, :1]),
    ):
        with pytest.raises(ValueError, match="pages must be"):
            attention(q, batch, bad_pages, AttentionForm(1.0))
    for bad_work in (None, AttentionWork(work.items[:-1], 1, 0)):
        with pytest.raises(ValueError, match=r"batch\.work must come"):
            attention(q, replace(batch, work=bad_work), pages, AttentionForm(1.0))
    with pytest.raises(ValueError, match="int32"):
        attention(q, replace(batch, block_tables=tables.long()), pages, AttentionForm(1.0))
    with pytest.raises(ValueError, match="window"):
        attention(q, batch, pages, AttentionForm(1.0, sliding_window=0))


@pytest.mark.parametrize(
    "shape",
    [
        AttentionShape(8, 3, 64, 64, 16, torch.float16, torch.float16),
        AttentionShape(8, 2, 520, 520, 16, torch.float16, torch.float16),
        AttentionShape(8, 2, 64, 64, 16, torch.float16, torch.float32),
        AttentionShape(8, 2, 64, 64, 16, torch.float64, torch.float64),
        AttentionShape(256, 1, 64, 64, 16, torch.float16, torch.float16),
        AttentionShape(16, 1, 700, 512, 16, torch.float16, torch.float16, True),
        AttentionShape(16, 1, 576, 512, 16, torch.float16, FP8, True),
    ],
)
def test_shapes_that_are_not_served_are_refused(device: torch.device, shape: AttentionShape) -> None:
    with pytest.raises(ValueError, match=r"heads|pages"):
        PagedAttention([shape], device, 4, 64)


def test_a_configuration_is_stored_for_every_device_that_triton_serves() -> None:
    for capability, head_dim, (query_bytes, page_bytes) in itertools.product(
        (80, 86, 87, 89, 90, 100, 120), range(16, 257, 16), ((2, 1), (2, 2), (4, 1), (4, 4))
    ):
        tuning.stored(capability, head_dim, query_bytes, page_bytes)
    with pytest.raises(ValueError, match=r"8\.0"):
        tuning.stored(75, 128, 2, 2)


def test_float32_is_computed_in_small_tiles_whatever_the_pages_are_in() -> None:
    assert tuning.stored(90, 128, 4, 1) == tuning.stored(90, 128, 4, 4) != tuning.stored(90, 128, 2, 1)


@pytest.mark.parametrize("head_dim", [16, 32])
@pytest.mark.parametrize("kv_dtype", [FP8, torch.float16])
def test_the_smallest_heads_make_products_that_tensor_cores_take(
    device: torch.device, head_dim: int, kv_dtype: torch.dtype
) -> None:
    """Of 16 elements at least, which the interpreter does not ask for; words of two elements are multiplied apart."""
    model = Model(head_dim=head_dim, dtype=torch.float16, kv_dtype=kv_dtype)
    step = lay_out(model, random_rows(model, [(40, 1), (7, 20)]), device)
    attention = model.attention(device)
    assert_exact(step, step.run(attention))
    assert attention._kernels[0].constants["BLOCK_D"] // (2 if kv_dtype is FP8 else 1) >= 16
