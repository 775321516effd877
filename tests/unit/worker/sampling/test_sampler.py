"""The samplers against an oracle in float64, their draws against probabilities, and their rows against each other."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from services.worker.ops.reference import ReferenceOps, philox
from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.step_plan import GeneratingSequence
from services.worker.sampling.host_sampler import HostSampler
from services.worker.sampling.sampler import Sample, Sampler
from services.worker.sampling.token_mask import TokenMask
from services.worker.sampling.truncation import TOP_P_WIDTHS
from services.worker.startup.create_ops import create_ops
from tests.unit.worker.sampling.conftest import MakeSampler
from tests.unit.worker.sampling.oracle import F64, softmax, transformed

CPU = torch.device("cpu")


def admit(sampler: Sampler, slot: int, params: SamplingParams, prompt: list[int], output: list[int]) -> None:
    tokens = np.array(prompt + output, np.uint32)
    sampler.admit(
        GeneratingSequence(slot, slot, tokens, len(prompt), 0, np.zeros(1, np.uint32), params, choice_index=0)
    )


def sample(
    sampler: Sampler, logits: Tensor, slots: list[int], position: int = 9, mask: TokenMask | None = None
) -> Sample:
    """On the host, but for the columns that are there anyway."""
    logits = logits.to(sampler.last_tokens.device)
    found = sampler.sample(logits, np.array(slots), np.full(len(slots), position, np.int32), mask)
    return Sample(found.tokens.cpu(), found.valid.cpu(), found.logprobs)


def random_params(chooser: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=chooser.choice((0.0, 0.3, 1.0, 1.0, 1.7)),
        top_k=chooser.choice((0, 0, 1, 3, 40, 5000)),
        top_p=chooser.choice((1.0, 1.0, 0.1, 0.9, 0.999)),
        min_p=chooser.choice((0.0, 0.0, 0.02, 0.5, 1.0)),
        repetition_penalty=chooser.choice((1.0, 1.0, 0.7, 1.8)),
        presence_penalty=chooser.choice((0.0, 0.0, -1.5, 2.0)),
        frequency_penalty=chooser.choice((0.0, 0.0, -0.5, 1.1)),
        logit_bias=chooser.choice(((), ((3, 100.0),), ((0, -100.0), (5, 2.5)))),
        seed=chooser.getrandbits(64),
        logprobs=chooser.choice((None, 0, 4)),
    )


@pytest.mark.parametrize("seed", range(8))
def test_what_is_drawn_from_is_what_the_oracle_says(seed: int) -> None:
    chooser, vocab_size, rows = random.Random(seed), 1500, 24
    sampler = HostSampler(create_ops(CPU, torch.float32), rows, vocab_size)
    logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * chooser.choice((1.0, 4.0))
    slots = chooser.sample(range(rows), rows)
    cases = []
    for slot in slots:
        prompt = [chooser.randrange(vocab_size) for _ in range(30)]
        output = [chooser.randrange(vocab_size) for _ in range(10)] * 2
        cases.append((prompt, output, random_params(chooser)))
        admit(sampler, slot, cases[-1][2], prompt, output)
    changed = logits.clone()
    tokens = sample(sampler, changed, slots).tokens.tolist()
    for row, (prompt, output, params) in enumerate(cases):
        expected = transformed(logits[row].double().numpy(), prompt, output, params)
        got = changed[row].numpy()
        assert (np.isneginf(got) == np.isneginf(expected)).all(), params
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)
        assert expected[tokens[row]] > -np.inf
        if params.greedy:
            assert tokens[row] == np.argmax(got)


def perturbed(logits: F64, seed: int, position: int) -> F64:
    """What the draw is the argmax of, in float64."""
    groups = torch.arange((len(logits) + 3) // 4)
    counter = (torch.tensor(position), torch.tensor(0), groups, 0 * groups)
    words = torch.stack(philox(counter, (torch.tensor(seed & 0xFFFFFFFF), torch.tensor(seed >> 32))), -1).flatten()
    scores: F64 = logits - np.log(-np.log1p(-(words[: len(logits)].double().numpy() + 0.5) * 2.0**-32))
    return scores


@pytest.mark.parametrize("seed", range(3))
def test_what_is_drawn_is_what_the_oracle_draws(make_sampler: MakeSampler, seed: int) -> None:
    """Over some steps, with penalties that count what was drawn, slots that change hands, and a grammar."""
    chooser, vocab_size, rows = random.Random(seed), 2100, 6
    sampler = make_sampler(rows, vocab_size)
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(1, vocab_size, generator=generator) < 0.5
    cases: dict[int, tuple[list[int], list[int], SamplingParams]] = {}
    for position in range(4):
        for slot in chooser.sample(range(rows), rows if position == 0 else 2):
            prompt = [chooser.randrange(vocab_size) for _ in range(30)]
            cases[slot] = (prompt, [chooser.randrange(vocab_size) for _ in range(10)] * 2, random_params(chooser))
            admit(sampler, slot, cases[slot][2], *cases[slot][:2])
        slots = chooser.sample(range(rows), 5)
        logits = torch.randn(5, vocab_size, generator=generator) * 3
        mask = TokenMask(np.array([1]), packed(allowed).to(sampler.last_tokens.device))
        found = sample(sampler, logits.clone(), slots, position, mask)
        for row, (slot, token) in enumerate(zip(slots, found.tokens.tolist(), strict=True)):
            prompt, output, params = cases[slot]
            x = logits[row].double().numpy()
            # To the oracle what the grammar forbids is not in the vocabulary.
            ids = np.flatnonzero(allowed[0].numpy()) if row == 1 else np.arange(vocab_size)
            expected = transformed(x, prompt, output, params, ids)
            scores = expected if params.greedy else perturbed(expected, params.seed, position)
            assert scores.max() - scores[token] < 1e-5, params
            output.append(token)
        assert found.valid.all()
        assert sampler.last_tokens[slots].tolist() == found.tokens.tolist()


def test_the_least_top_p_keeps_the_likeliest_alone(make_sampler: MakeSampler) -> None:
    """What the router makes of 0, however alike the tokens are."""
    pytest.importorskip("pydantic")
    from services.router.dispatch.converters import LEAST_TOP_P

    vocab_size, rows = 2100, 8
    sampler = make_sampler(rows, vocab_size)
    for slot in range(rows):
        admit(sampler, slot, SamplingParams(top_p=LEAST_TOP_P, temperature=2.0, seed=slot), [1], [])
    logits = torch.zeros(rows, vocab_size)
    logits[:, 77] = 1e-3
    assert sample(sampler, logits, list(range(rows))).tokens.tolist() == [77] * rows


def packed(allowed: Tensor) -> Tensor:
    """bool [m, vocab] as a grammar's bits, int32."""
    words = torch.nn.functional.pad(allowed.long(), (0, -allowed.shape[1] % 32)).view(len(allowed), -1, 32)
    return (words << torch.arange(32)).sum(-1).to(torch.int32)


@pytest.mark.filterwarnings("ignore:invalid value")  # of Triton's interpreter
def test_a_grammar_that_allows_nothing_marks_the_row(make_sampler: MakeSampler) -> None:
    for temperature in (0.0, 1.0):
        sampler = make_sampler(2, 40)
        for slot in range(2):
            admit(sampler, slot, SamplingParams(temperature=temperature), [1], [])
        mask = TokenMask(np.array([1]), torch.zeros(1, 2, dtype=torch.int32, device=sampler.last_tokens.device))
        result = sample(sampler, torch.arange(80.0).view(2, 40), [0, 1], mask=mask)
        assert result.valid.tolist() == [True, False]
        assert result.tokens[1] == 0


def test_log_probabilities_are_of_the_logits_as_they_came(make_sampler: MakeSampler) -> None:
    """Of the rows that ask, as many as they ask for, before penalties, bias and temperature."""
    sampler = make_sampler(3, 100)
    shaped = {"temperature": 0.0, "presence_penalty": 2.0, "logit_bias": ((3, 50.0),)}
    for slot, logprobs in enumerate((0, None, 5)):
        admit(sampler, slot, SamplingParams(logprobs=logprobs, **shaped), [1], [2])  # type: ignore[arg-type]
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(1))
    found = sample(sampler, logits.clone(), [2, 1, 0]).logprobs
    assert found is not None
    assert found.rows.tolist() == [0, 2]
    assert found.top_counts.tolist() == [5, 0]
    exact = logits.double().log_softmax(-1)[[0, 2]]
    torch.testing.assert_close(found.logprobs.cpu().double(), exact[:, 3], rtol=1e-6, atol=1e-6)
    top = exact.topk(20)
    assert torch.equal(found.top_token_ids.cpu(), top.indices)
    torch.testing.assert_close(found.top_logprobs.cpu().double(), top.values, rtol=1e-6, atol=1e-6)


def test_tokens_that_a_request_names_are_reported_in_place_of_the_likeliest(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(4, 100)
    named: list[tuple[int, ...]] = [(7, 99, 0), (), tuple(range(40, 60)), ()]
    for slot, (token_ids, logprobs) in enumerate(zip(named, (0, 2, 5, None), strict=True)):
        params = SamplingParams(
            temperature=0.0, logit_bias=((3, 50.0),), logprobs=logprobs, logprob_token_ids=token_ids
        )
        admit(sampler, slot, params, [1], [2])
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(1))
    logits[0, 99] = logits[0, 7]
    order = [2, 3, 0, 1]
    found = sample(sampler, logits[order].clone(), order).logprobs
    assert found is not None
    assert found.rows.tolist() == [0, 2, 3]
    assert found.top_counts.tolist() == [20, 3, 2]
    exact = logits.double().log_softmax(-1)
    torch.testing.assert_close(found.logprobs.cpu().double(), exact[[2, 0, 1], 3], rtol=1e-6, atol=1e-6)
    for entry, slot in enumerate((2, 0, 1)):
        count = int(found.top_counts[entry])
        likeliest = exact[slot].topk(count).indices.tolist()
        expected = sorted(named[slot], key=lambda token: (-float(exact[slot, token]), token)) or likeliest
        assert found.top_token_ids[entry, :count].tolist() == expected
        got = found.top_logprobs[entry, :count].cpu().double()
        torch.testing.assert_close(got, exact[slot, expected], rtol=1e-6, atol=1e-6)
    # A slot's next sequence finds nothing of the one before.
    admit(sampler, 0, SamplingParams(temperature=0.0, logprobs=1), [1], [2])
    again = sample(sampler, logits[:1].clone(), [0]).logprobs
    assert again is not None
    assert (again.top_counts.tolist(), int(again.top_token_ids[0, 0])) == ([1], int(logits[0].argmax()))


@pytest.mark.parametrize(
    ("token_ids", "words"), [((100,), "the model has 100"), ((1, 1), "twice"), (tuple(range(21)), "20 at most")]
)
def test_tokens_that_cannot_be_reported_are_named(token_ids: tuple[int, ...], words: str) -> None:
    problem = SamplingParams(logprobs=0, logprob_token_ids=token_ids).check(100)
    assert problem is not None
    assert words in problem


def test_slots_with_penalties_may_be_many_and_come_and_go(make_sampler: MakeSampler) -> None:
    """More of them than counts were kept for at first; a count is never another slot's."""
    sampler = make_sampler(9, 50)
    for turn in range(2):
        for slot in range(9):
            penalty = 0.0 if turn == 1 and slot % 2 else 1.5
            admit(sampler, slot, SamplingParams(temperature=0.0, presence_penalty=penalty), [slot], [slot + turn])
        logits = torch.zeros(9, 50)
        logits[range(9), [slot + turn for slot in range(9)]] = 1.0
        tokens = sample(sampler, logits, list(range(9))).tokens.tolist()
        assert tokens == [slot + 1 if turn == 1 and slot % 2 else int(slot + turn == 0) for slot in range(9)]


@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.99])
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
def test_top_p_keeps_the_same_tokens_by_partial_and_by_full_sort(
    monkeypatch: pytest.MonkeyPatch, top_p: float, spread: float
) -> None:
    logits = torch.randn(6, 4000, generator=torch.Generator().manual_seed(1)) * spread
    kept = []
    for widths in (TOP_P_WIDTHS, (), (7,)):
        monkeypatch.setattr("services.worker.sampling.truncation.TOP_P_WIDTHS", widths)
        sampler = HostSampler(ReferenceOps(CPU, torch.float32), 6, 4000)
        for slot in range(6):
            admit(sampler, slot, SamplingParams(top_p=top_p), [1], [])
        changed = logits.clone()
        sample(sampler, changed, list(range(6)))
        kept.append(changed.isfinite())
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[0], kept[2])


def test_cuts_keep_the_equals_of_the_last_token_kept() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    sampler = HostSampler(ReferenceOps(CPU, torch.float32), 1, 5)
    admit(sampler, 0, SamplingParams(top_k=2), [1], [])
    changed = logits.clone()
    sample(sampler, changed, [0])
    assert changed.isfinite().tolist() == [[True, True, True, True, False]]


def test_greedy_takes_the_lowest_id_among_equals_also_after_penalties(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(2, 5)
    admit(sampler, 0, SamplingParams(temperature=0.0), [1], [])
    admit(sampler, 1, SamplingParams(temperature=0.0, presence_penalty=2.0), [1], [2])
    assert sample(sampler, torch.tensor([[0.0, 3.0, 3.0, 3.0, 1.0]]), [0]).tokens.tolist() == [1]
    # 2 is in the output already: 3 - 2 equals the others.
    assert sample(sampler, torch.tensor([[0.0, 1.0, 3.0, 1.0, 1.0]]), [1]).tokens.tolist() == [1]


def test_penalties_count_what_was_drawn_since(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(1, 4)
    admit(sampler, 0, SamplingParams(temperature=0.0, frequency_penalty=1.0), [0], [])
    logits = torch.tensor([[0.0, 2.5, 2.0, 1.2]])
    drawn = [sample(sampler, logits.clone(), [0]).tokens.item() for _ in range(5)]
    assert drawn == [1, 2, 1, 3, 2]  # each draw lowers that token's logit by one


def test_a_slot_keeps_nothing_of_its_former_owner(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(1, 4)
    admit(sampler, 0, SamplingParams(temperature=0.0, presence_penalty=2.0, logit_bias=((3, 9.0),)), [1], [2])
    sample(sampler, torch.zeros(1, 4), [0])
    admit(sampler, 0, SamplingParams(temperature=0.0, presence_penalty=2.0), [1], [])
    logits = torch.tensor([[0.0, 0.0, 1.0, 0.5]])
    assert sample(sampler, logits, [0]).tokens.tolist() == [2]


def test_draws_follow_the_probabilities() -> None:
    """Chi-squared over 40,000 draws of 8 tokens: 24.3 is passed once in a thousand seeds."""
    rows = 400
    sampler = HostSampler(create_ops(CPU, torch.float32), rows, 8)
    for slot in range(rows):
        admit(sampler, slot, SamplingParams(temperature=0.8, seed=slot * 2**40 + 17), [1], [])
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, 1.1, -0.4, 0.9, -2.0])
    counts = np.zeros(8)
    for position in range(100):
        tokens = sample(sampler, logits.repeat(rows, 1), list(range(rows)), position).tokens
        counts += np.bincount(tokens.numpy(), minlength=8)
    expected = softmax(logits.double().numpy() / 0.8) * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 24.3


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero")  # of Triton's interpreter
@pytest.mark.parametrize("bad", [[torch.nan, 1.0], [torch.inf, 1.0], [-torch.inf, -torch.inf]])
def test_rows_that_are_no_numbers_are_marked_and_leave_the_others_alone(
    make_sampler: MakeSampler, bad: list[float]
) -> None:
    params = SamplingParams(top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.2, seed=3, logprobs=2)
    logits = torch.randn(3, 2000, generator=torch.Generator().manual_seed(2))
    alone, together = make_sampler(3, 2000), make_sampler(3, 2000)
    for sampler in (alone, together):
        for slot in range(3):
            admit(sampler, slot, params, [4], [])
    poisoned = logits.clone()
    poisoned[1] = torch.tensor(bad).repeat(1000)
    result = sample(together, poisoned, [0, 1, 2])
    assert result.valid.tolist() == [True, False, True]
    assert result.tokens[1] == 0
    expected = sample(alone, logits[[0, 2]], [0, 2])
    assert torch.equal(result.tokens[[0, 2]], expected.tokens)


def results(params: list[SamplingParams], logits: Tensor, rows: list[int]) -> list[Any]:
    """Of some rows of a batch, sampled together."""
    sampler = HostSampler(create_ops(CPU, torch.float32), len(params), logits.shape[1])
    for slot in rows:
        admit(sampler, slot, params[slot], [1, 2, 3], [4, 4, 5])
    changed = logits[rows].clone()
    drawn = sample(sampler, changed, rows)
    found: list[Any] = [[token, changed[index]] for index, token in enumerate(drawn.tokens.tolist())]
    if drawn.logprobs is not None:
        for index, row in enumerate(drawn.logprobs.rows.tolist()):
            found[row] += [
                drawn.logprobs.logprobs[index],
                drawn.logprobs.top_token_ids[index],
                drawn.logprobs.top_logprobs[index],
            ]
    return found


@pytest.mark.usefixtures("batch_invariant")
@pytest.mark.parametrize("vocab_size", [333, 4097, 50_000])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(vocab_size: int) -> None:
    chooser = random.Random(vocab_size)
    params = [random_params(chooser) for _ in range(17)]
    logits = torch.randn(17, vocab_size, generator=torch.Generator().manual_seed(3)) * 3
    logits[:, 20:30] = 9.5  # ties at the top
    before = torch.get_num_threads()
    expected = [results(params, logits, [row])[0] for row in range(17)]
    for threads, size in ((1, 17), (2, 17), (3, 2), (2, 5), (1, 3)):
        torch.set_num_threads(threads)
        rows = chooser.sample(range(17), size)
        for row, found in zip(rows, results(params, logits, rows), strict=True):
            assert len(found) == len(expected[row])
            for value, reference in zip(found, expected[row], strict=True):
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(reference))
    torch.set_num_threads(before)
