"""Every form of attention and of rotation: close to the exact one, and the same bits however a prompt is cut."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.ops.cpu.ops import CPUOps
from services.worker.ops.interface import AttentionBatch, AttentionForm, KVPages, Rotation
from services.worker.ops.reference import ReferenceOps
from tests.unit.worker.ops.paging import Heads, PagedRun, assert_close, random_sequence, rope_table, run_alone


def create_forms(heads: Heads, generator: torch.Generator) -> dict[str, AttentionForm]:
    scale = heads.dim**-0.5
    slopes, sinks = torch.rand(heads.query, generator=generator) / 8, 3 * torch.rand(heads.query, generator=generator)
    return {
        "plain": AttentionForm(scale),
        "window": AttentionForm(scale, sliding_window=70),
        "chunk": AttentionForm(scale, chunk=48),
        "soft cap": AttentionForm(scale, soft_cap=1.0),
        "slopes": AttentionForm(scale, slopes=slopes),
        "sinks": AttentionForm(scale, sinks=sinks),
        "all": AttentionForm(scale, sliding_window=20, soft_cap=5.0, slopes=slopes, sinks=sinks),
    }


def one_sequence(length: int) -> AttentionBatch:
    """A sequence in pages 2, 0 and 1 of 16 slots each."""
    starts = torch.tensor([0, length], dtype=torch.int32)
    return AttentionBatch(torch.arange(length, dtype=torch.int32), starts, torch.tensor([[2, 0, 1]]).int())


# Values narrower and wider than keys, the sizes of DeepSeek-V3 (latent or not), and a head of Gemma 4.
SHAPES = [Heads(8, 4, 8), Heads(6, 2, 24, 10), Heads(4, 4, 16, 40), Heads(4, 4, 192, 128), Heads(3, 1, 512),
          Heads(16, 1, 576, 512, is_latent=True), Heads(5, 1, 18, 10, is_latent=True)]  # fmt: skip


@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_every_form_equals_the_exact_one(
    cpus: dict[str, CPUOps], exact: ReferenceOps, generator: torch.Generator, heads: Heads
) -> None:
    sequence = random_sequence(generator, 530, heads)
    forms = create_forms(heads, generator)
    plain = run_alone(exact, heads, sequence, form=forms["plain"])
    for name, form in forms.items():
        expected = plain if name == "plain" else run_alone(exact, heads, sequence, form=form)
        assert name == "plain" or (expected - plain).abs().max() > 0.05, name
        for level, cpu in cpus.items():
            got = run_alone(cpu, heads, sequence, form=form).double()
            assert_close(got, expected, rtol=1e-4, atol=2e-5, told=f"{name}, {level}")


@pytest.mark.parametrize("name", ["window", "chunk", "soft cap", "slopes", "sinks"])
def test_the_exact_form_equals_a_softmax_written_out(
    exact: ReferenceOps, generator: torch.Generator, name: str
) -> None:
    """The oracle's own oracle."""
    heads, length = Heads(2, 1, 8), 40
    form = create_forms(heads, generator)[name]
    if form.sliding_window or form.chunk:
        form = AttentionForm(form.scale, sliding_window=form.sliding_window and 9, chunk=form.chunk and 11)
    sequence = random_sequence(generator, length, heads)
    q, k, v = sequence.q.double(), sequence.k[:, 0].double(), sequence.v[:, 0].double()
    batch, empty = one_sequence(length), torch.zeros(3, 1, 16, 8).double()
    pages = KVPages(empty, empty.clone())
    exact.write_kv(k[:, None], v[:, None], batch, pages)
    got = exact.paged_attention(q, batch, pages, form)
    for position, head in ((0, 0), (7, 1), (21, 0), (22, 0), (39, 0), (39, 1)):
        seen = [at for at in range(position + 1) if form.sliding_window is None or at > position - 9]
        seen = [at for at in seen if form.chunk is None or at // 11 == position // 11]
        scores = [float(q[position, head] @ k[at]) * form.scale for at in seen]
        if form.soft_cap is not None:
            scores = [form.soft_cap * math.tanh(score / form.soft_cap) for score in scores]
        if form.slopes is not None:
            scores = [
                score - float(form.slopes[head]) * (position - at) for at, score in zip(seen, scores, strict=True)
            ]
        total = sum(map(math.exp, scores)) + (0.0 if form.sinks is None else math.exp(form.sinks[head]))
        expected = sum(math.exp(score) / total * v[at] for at, score in zip(seen, scores, strict=True))
        torch.testing.assert_close(got[position, 8 * head : 8 * head + 8], expected)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_bits_depend_on_the_sequence_alone(cpu: CPUOps, data: st.DataObject) -> None:
    heads = data.draw(st.sampled_from([Heads(8, 4, 8), Heads(6, 2, 24, 10), Heads(5, 1, 40, 30, is_latent=True)]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    form = data.draw(st.sampled_from(list(create_forms(heads, generator).values())))
    block_size = data.draw(st.sampled_from([1, 8, 16, 24, 64]))
    lengths = data.draw(st.lists(st.integers(1, 200) | st.integers(250, 800), min_size=1, max_size=3))
    sequences = [random_sequence(generator, length, heads) for length in lengths]
    alone = [run_alone(cpu, heads, sequence, form=form) for sequence in sequences]
    before = torch.get_num_threads()
    torch.set_num_threads(data.draw(st.sampled_from([1, 2, 3])))
    run = PagedRun(cpu, heads, lengths, block_size, form)
    while unfinished := [row for row, length in enumerate(lengths) if run.done[row] < length]:
        rows = data.draw(st.permutations(unfinished))
        run.step(sequences, {row: data.draw(st.integers(1, lengths[row] - run.done[row])) for row in rows})
    torch.set_num_threads(before)
    for row, expected in enumerate(alone):
        assert torch.equal(run.result(row), expected)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [2, 6, 32, 48])
def test_part_of_a_head_is_rotated_as_complex_numbers(
    cpu: CPUOps, exact: ReferenceOps, generator: torch.Generator, rotary_dim: int, interleaved: bool
) -> None:
    heads, batch = torch.randn(40, 3, 48, generator=generator), one_sequence(40)
    rotation = Rotation(rope_table(40, rotary_dim), interleaved)
    cos, sin = rotation.cos_sin.double().chunk(2, dim=-1)
    x = heads[..., :rotary_dim].double()
    z = torch.complex(*((x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)))
    z = z * torch.complex(cos, sin)[:, None]
    turned = torch.stack((z.real, z.imag), -1).flatten(-2) if interleaved else torch.cat((z.real, z.imag), -1)
    expected = torch.cat((turned, heads[..., rotary_dim:].double()), dim=-1)
    for ops in (cpu, exact):
        got = heads.to(ops.dtype, copy=True)
        ops.rope(got, rotation, batch)
        torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotating_and_writing_in_one_call_gives_the_same_bits(
    cpu: CPUOps, generator: torch.Generator, interleaved: bool
) -> None:
    rotation, batch = Rotation(rope_table(40, 6), interleaved), one_sequence(40)
    q, k, v = (torch.randn(40, count, 10, generator=generator) for count in (4, 2, 2))
    together, apart = (KVPages(torch.zeros(3, 2, 16, 10), torch.zeros(3, 2, 16, 10)) for _ in range(2))
    q_too, k_too = q.clone(), k.clone()
    cpu.rope_and_write_kv(q, k, v, rotation, batch, together)
    cpu.rope(q_too, rotation, batch)
    cpu.rope(k_too, rotation, batch)
    cpu.write_kv(k_too, v, batch, apart)
    assert torch.equal(q, q_too)
    assert torch.equal(k, k_too)
    assert all(map(torch.equal, together.tensors, apart.tensors))


def test_what_c_would_misread_is_refused(cpu: CPUOps) -> None:
    batch, q = one_sequence(3), torch.zeros(3, 4, 8)
    pages = KVPages(torch.zeros(3, 2, 16, 8), torch.zeros(3, 2, 16, 6))
    assert cpu.paged_attention(q, batch, pages, AttentionForm(1.0)).shape == (3, 24)
    for form in (
        AttentionForm(1.0, chunk=0),
        AttentionForm(1.0, sliding_window=4, chunk=4),
        AttentionForm(1.0, soft_cap=-1.0),
        AttentionForm(1.0, slopes=torch.zeros(3)),
        AttentionForm(1.0, sinks=torch.zeros(4).double()),
    ):
        with pytest.raises(ValueError, match=r"chunk|soft cap|slopes"):
            cpu.paged_attention(q, batch, pages, form)
    with pytest.raises(ValueError, match="at most 576"):
        cpu.paged_attention(q, batch, KVPages(pages.keys, torch.zeros(3, 2, 16, 9), is_latent=True), AttentionForm(1.0))
    for rotary_dim in (3, 10):
        with pytest.raises(ValueError, match="cos_sin"):
            cpu.rope(q, Rotation(torch.zeros(3, rotary_dim)), batch)
    k, v = torch.zeros(3, 2, 8), torch.zeros(3, 2, 6)
    for bad_k, bad_v in ((k, None), (k, k), (v, v), (k[:2], v), (k, v.double())):
        with pytest.raises(ValueError, match=r"v must|k and v|positions"):
            cpu.write_kv(bad_k, bad_v, batch, pages)
