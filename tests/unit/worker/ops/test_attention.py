"""Rotation, paging and attention: the same bits for a token however its prompt was cut and whatever ran beside it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.interface import AttentionBatch, AttentionForm, KVPages, Rotation
from services.worker.ops.reference import ReferenceOps
from tests.unit.worker.ops.paging import Heads, PagedRun, assert_close, random_sequence, rope_table, run_alone

HEADS = [Heads(9, 3, 64), Heads(8, 4, 8), Heads(4, 4, 128), Heads(32, 1, 16), Heads(6, 2, 80), Heads(2, 1, 256),
         Heads(3, 1, 24), Heads(2, 2, 10)]  # fmt: skip


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("window", [None, 1, 21, 300])
def test_attention_equals_the_exact_one(
    cpus: dict[str, CPUOps], exact: ReferenceOps, generator: torch.Generator, heads: Heads, window: int | None
) -> None:
    sequence = random_sequence(generator, 530, heads)
    expected = run_alone(exact, heads, sequence, window=window)
    for level, cpu in cpus.items():
        got = run_alone(cpu, heads, sequence, window=window).double()
        assert_close(got, expected, rtol=1e-4, atol=5e-6, told=level)


@pytest.mark.parametrize("position", [0, 15, 16, 63, 64, 255, 256, 600])
def test_one_query_equals_a_softmax_written_out(
    cpu: CPUOps, exact: ReferenceOps, generator: torch.Generator, position: int
) -> None:
    """Checks the reference operations themselves, without pages, with one sequence and one head."""
    heads = Heads(1, 1, 32)
    sequence = random_sequence(generator, position + 1, heads)
    angles = rope_table(position + 1, 32).double()

    def rotate(x: torch.Tensor) -> torch.Tensor:  # as complex numbers
        z = torch.complex(x[:, 0, :16].double(), x[:, 0, 16:].double()) * torch.complex(angles[:, :16], angles[:, 16:])
        return torch.cat((z.real, z.imag), dim=-1)

    weights = (rotate(sequence.k) @ rotate(sequence.q)[position] / 32**0.5).softmax(0)
    expected = weights @ sequence.v[:, 0].double()
    torch.testing.assert_close(run_alone(exact, heads, sequence)[position], expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(run_alone(cpu, heads, sequence)[position].double(), expected, rtol=1e-5, atol=1e-5)


def test_soft_caps_and_scaled_fp8_pages_equal_a_softmax_written_out(
    exact: ReferenceOps, generator: torch.Generator
) -> None:
    """Checks the reference operations themselves."""
    q, k, v = (torch.randn(40, 1, 32, generator=generator).double() for _ in range(3))
    v[7, 0, 3] = 1000.0
    batch = AttentionBatch(
        torch.arange(40, dtype=torch.int32), torch.tensor([0, 40], dtype=torch.int32), torch.tensor([[2, 0, 1]]).int()
    )
    keys = torch.zeros(3, 1, 16, 32).to(torch.float8_e4m3fn)
    pages = KVPages(keys, keys.clone(), key_scale=0.5, value_scale=0.25)
    exact.write_kv(k, v, batch, pages)
    # The greatest number is 448, times the scale.
    stored_k = 0.5 * (k[:, 0] / 0.5).to(torch.float8_e4m3fn).double()
    stored_v = 0.25 * (v[:, 0] / 0.25).clamp(-448, 448).to(torch.float8_e4m3fn).double()
    assert stored_v[7, 3] == 112.0
    scores = 3.0 * torch.tanh(q[:, 0] @ stored_k.T * 0.7 / 3.0)
    expected = scores.masked_fill(torch.ones(40, 40).triu(1).bool(), -torch.inf).softmax(-1) @ stored_v
    torch.testing.assert_close(exact.paged_attention(q, batch, pages, AttentionForm(0.7, soft_cap=3.0)), expected)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_bits_depend_on_the_sequence_alone(cpu: CPUOps, data: st.DataObject) -> None:
    """Any chunks, any neighbours in any order, any block size, any window, any number of threads."""
    heads = data.draw(st.sampled_from([Heads(9, 3, 64), Heads(8, 4, 8), Heads(3, 1, 24), Heads(1, 1, 16)]))
    block_size = data.draw(st.sampled_from([1, 4, 8, 16, 24, 32, 64]))
    window = data.draw(st.sampled_from([None, None, 1, 20, 70, 300]))
    lengths = data.draw(st.lists(st.integers(1, 200) | st.integers(250, 800), min_size=1, max_size=4))
    threads = data.draw(st.sampled_from([1, 2, 3]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    sequences = [random_sequence(generator, length, heads) for length in lengths]
    alone = [run_alone(cpu, heads, sequence, window=window) for sequence in sequences]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    run = PagedRun(cpu, heads, lengths, block_size, window=window)
    while unfinished := [row for row, length in enumerate(lengths) if run.done[row] < length]:
        rows = data.draw(st.permutations(unfinished))
        rows = rows[: data.draw(st.integers(1, len(rows)))]
        run.step(sequences, {row: data.draw(st.integers(1, lengths[row] - run.done[row])) for row in rows})
    torch.set_num_threads(before)
    for row, expected in enumerate(alone):
        assert torch.equal(run.result(row), expected)


@pytest.mark.parametrize("heads", [Heads(9, 3, 64), Heads(8, 4, 8)], ids=str)
def test_decoding_token_by_token_equals_one_prefill_bit_for_bit(
    cpu: CPUOps, generator: torch.Generator, heads: Heads, threads: int
) -> None:
    sequences = [random_sequence(generator, 150, heads) for _ in range(3)]
    run = PagedRun(cpu, heads, [150] * 3, 16)
    for _ in range(150):
        run.step(sequences, {0: 1, 1: 1, 2: 1})
    for row, sequence in enumerate(sequences):
        assert torch.equal(run.result(row), run_alone(cpu, heads, sequence))


def test_a_long_sequence_is_the_same_whether_threads_share_its_splits(cpu: CPUOps, threads: int) -> None:
    """One sequence alone is split among the threads, one of many is not."""
    heads = Heads(9, 3, 64)
    generator = torch.Generator().manual_seed(5)
    sequences = [random_sequence(generator, length, heads) for length in (1500, *[40] * 20)]
    for window in (None, 700):
        run = PagedRun(cpu, heads, [len(sequence.q) for sequence in sequences], 16, window=window)
        run.step(sequences, {0: 1496})
        for _ in range(4):
            run.step(sequences, {0: 1} | dict.fromkeys(range(1, 21), 10))
        assert torch.equal(run.result(0), run_alone(cpu, heads, sequences[0], window=window))


def test_a_large_score_neither_overflows_nor_hides_the_window(cpu: CPUOps, exact: ReferenceOps) -> None:
    heads = Heads(1, 1, 8)
    sequence = random_sequence(torch.Generator().manual_seed(1), 130, heads)
    sequence.k[:60].mul_(300)  # scores in the thousands that the later queries' window leaves behind
    for window in (None, 40):
        got = run_alone(cpu, heads, sequence, window=window)
        torch.testing.assert_close(got.double(), run_alone(exact, heads, sequence, window=window), rtol=1e-3, atol=1e-3)


def test_nan_reaches_its_own_sequence_only(cpu: CPUOps, generator: torch.Generator) -> None:
    heads = Heads(3, 3, 16)
    sequences = [random_sequence(generator, 40, heads) for _ in range(2)]
    sequences[0].k[20, 1, 3] = torch.nan
    run = PagedRun(cpu, heads, [40, 40], 16)
    run.step(sequences, {0: 40, 1: 40})
    assert run.result(0)[20:, 16:32].isnan().all()
    assert not run.result(1).isnan().any()


def test_pages_may_lie_inside_a_larger_cache(cpu: CPUOps, generator: torch.Generator) -> None:
    """Keys and values of all layers in one allocation, and a projection whose q, k and v have strides of their own."""
    heads = Heads(4, 2, 16)
    sequence = random_sequence(generator, 50, heads)
    run = PagedRun(cpu, heads, [50], 16)
    blocks = run.pages.keys.shape[0]
    cache = torch.full((blocks, 2, 2, 16, 16), torch.nan)  # [num_blocks, keys or values, kv heads, block size, dim]
    run.pages = KVPages(cache[:, 0], cache[:, 1])
    run.step([sequence], {0: 50})
    assert torch.equal(run.result(0), run_alone(cpu, heads, sequence))


def test_rope_rotates_in_place_like_the_reference(cpu: CPUOps, exact: ReferenceOps, generator: torch.Generator) -> None:
    for dim in (2, 8, 24, 64, 80):
        q, k, v = (torch.randn(70, count, dim, generator=generator) for count in (4, 2, 2))
        positions = torch.arange(70, dtype=torch.int32)
        starts, table = torch.tensor([0, 70], dtype=torch.int32), torch.arange(5, dtype=torch.int32)[None]
        batch = AttentionBatch(positions, starts, table)
        rotated = []
        for ops in (cpu, exact):
            zeros = torch.zeros(5, 2, 16, dim, dtype=ops.dtype)
            pages = KVPages(zeros, zeros.clone())
            a, b, c = (x.to(ops.dtype, copy=True) for x in (q, k, v))
            ops.rope_and_write_kv(a, b, c, Rotation(rope_table(70, dim)), batch, pages)
            rotated.append((a, b, c))
        for got, expected in zip(*rotated, strict=True):
            torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=1e-6)


def test_what_c_would_misread_is_refused(cpu: CPUOps) -> None:
    pages = KVPages(torch.zeros(2, 2, 16, 8), torch.zeros(2, 2, 16, 8))
    starts, table = torch.tensor([0, 3], dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int32)
    batch = AttentionBatch(torch.arange(3, dtype=torch.int32), starts, table)
    q = torch.zeros(3, 4, 8)
    assert cpu.paged_attention(q, batch, pages, AttentionForm(1.0)).shape == (3, 32)
    for bad in (q.double(), q[:2], q[:, :3], torch.zeros(3, 4, 16), q.transpose(1, 2)):
        with pytest.raises(ValueError, match=r"q must be|heads|positions"):
            cpu.paged_attention(bad, batch, pages, AttentionForm(1.0))
    with pytest.raises(ValueError, match="int32"):
        cpu.paged_attention(q, AttentionBatch(torch.arange(3), starts, table), pages, AttentionForm(1.0))
    with pytest.raises(ValueError, match="page's"):
        cpu.paged_attention(
            q, batch, KVPages(pages.keys.transpose(1, 2), pages.keys.transpose(1, 2)), AttentionForm(1.0)
        )
    with pytest.raises(ValueError, match="window"):
        cpu.paged_attention(q, batch, pages, AttentionForm(1.0, sliding_window=0))
    with pytest.raises(ValueError, match="soft cap"):
        cpu.paged_attention(q, batch, pages, AttentionForm(1.0, soft_cap=-1.0))
    with pytest.raises(ValueError, match="scales"):
        cpu.paged_attention(q, batch, KVPages(pages.keys, pages.values, value_scale=2.0), AttentionForm(1.0))
