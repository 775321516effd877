"""Penalties, biases and grammars; the argmax; log probabilities."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from services.worker.ops.triton.sampling import columns as c
from services.worker.ops.triton.sampling.columns import TILE
from services.worker.ops.triton.sampling.pipeline import SlotState, Stages
from services.worker.plan.sampling_params import SamplingParams
from tests.unit.worker.triton.sampling_bench import Bench

INF = float("inf")


@pytest.mark.parametrize("vocab_size", [1, 5, TILE, 2 * TILE + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_rows_take_the_lowest_id_among_equals(device: torch.device, dtype: torch.dtype, vocab_size: int) -> None:
    logits = (torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(1)) * 2).round().to(dtype)
    logits[1], logits[2] = -INF, logits[2] - 1e30
    logits[1, -1] = -5.0
    bench = Bench([SamplingParams(temperature=0.0)] * 6, vocab_size, device)
    tokens, valid = bench.pipeline.run(logits.to(device), bench.rows, bench.state, None, Stages(False, False))
    assert torch.equal(tokens.cpu(), logits.float().argmax(-1))
    assert valid.all()
    assert torch.equal(bench.state.last_tokens, tokens)


@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")  # of the interpreter: -inf - -inf
@pytest.mark.parametrize("stages", [Stages(False, False), Stages(True, True)])
@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_rows_that_are_no_numbers_are_marked(device: torch.device, stages: Stages, bad: str) -> None:
    logits = torch.randn(3, TILE + 9, generator=torch.Generator().manual_seed(1))
    if bad == "-inf":
        logits[1] = -INF
    else:
        logits[1, TILE + 4] = float(bad)
    params = SamplingParams(
        temperature=1.0 if stages.shape else 0.0, top_k=5 if stages.cuts else 0, top_p=0.9, min_p=0.1
    )
    bench = Bench([params] * 3, TILE + 9, device)
    tokens, valid = bench.pipeline.run(logits.to(device), bench.rows, bench.state, None, stages)
    assert valid.tolist() == [True, False, True]
    assert tokens[1] == 0


def test_a_row_of_nobodys_writes_nothing_but_its_own_result(device: torch.device) -> None:
    """As a captured graph has them: the others draw as if it were not there."""
    params = SamplingParams(seed=4, top_p=0.8)
    bench = Bench([params] * 4, 700, device)
    logits = torch.randn(4, 700, generator=torch.Generator().manual_seed(1)).to(device)
    alone, _ = bench.pipeline.run(logits, bench.rows, bench.state, None, Stages(True, True))
    bench.state.last_tokens.fill_(-1)
    bench.rows.slots[2] = -1
    tokens, valid = bench.pipeline.run(logits, bench.rows, bench.state, None, Stages(True, True))
    assert valid.tolist() == [True, True, False, True]
    assert tokens.tolist() == [*alone.tolist()[:2], 0, alone[3].item()]
    assert bench.state.last_tokens.tolist() == [*alone.tolist()[:2], -1, alone[3].item()]


@pytest.mark.parametrize("vocab_size", [3, 20, 700, 2 * TILE + 100])
def test_log_probabilities_and_the_likeliest(device: torch.device, vocab_size: int) -> None:
    logits = (torch.randn(4, vocab_size, generator=torch.Generator().manual_seed(1)) * 8).round() / 2  # ties
    logits[1] += 500.0
    logits[2, 1:3] = torch.tensor([0.0, -0.0])
    drawn = torch.tensor([0, vocab_size - 1, 1, 2])
    asking = torch.tensor([3, 1, 2])
    bench = Bench([SamplingParams()] * 4, vocab_size, device)
    logprobs, tokens, values = bench.pipeline.log_probabilities(logits.to(device), asking.to(device), drawn.to(device))
    exact = logits.double().log_softmax(-1)[asking]
    torch.testing.assert_close(
        logprobs.cpu().double(), exact.gather(1, drawn[asking][:, None])[:, 0], rtol=1e-6, atol=1e-6
    )
    count = min(20, vocab_size)
    order = logits[asking].argsort(dim=-1, descending=True, stable=True)[:, :count]
    assert torch.equal(tokens.cpu(), order)
    torch.testing.assert_close(values.cpu().double(), exact.gather(1, order), rtol=1e-6, atol=1e-6)


def test_shaping_follows_the_formula_and_leaves_other_rows_alone(device: torch.device) -> None:
    vocab_size = TILE + 77
    generator = torch.Generator().manual_seed(9)
    logits = torch.randn(5, vocab_size, generator=generator)
    in_prompt = torch.rand(2, vocab_size, generator=generator) < 0.3
    counts = torch.randint(0, 4, (2, vocab_size), generator=generator) * (torch.rand(2, vocab_size) < 0.5)
    biases = torch.randn(1, vocab_size, generator=generator)
    allowed = torch.rand(1, vocab_size, generator=generator) < 0.5
    padded = torch.zeros(1, -(-vocab_size // 32) * 32, dtype=torch.int64)
    padded[:, :vocab_size] = allowed.long()
    masks = (padded.view(1, -1, 32) << torch.arange(32)).sum(-1).to(torch.int32)
    bench = Bench([SamplingParams()] * 5, vocab_size, device)
    table = bench.state.columns.cpu()
    numbers = table.view(torch.float32)
    # Rows 0 and 1 have penalties, row 1 a bias too, row 2 a bias alone, row 3 a grammar, row 4 nothing.
    for row in (0, 1):
        table[row, c.COUNTS_ROW.value] = 1 - row
        numbers[row, c.REPETITION.value], numbers[row, c.PRESENCE.value], numbers[row, c.FREQUENCY.value] = (
            1.7,
            -0.6,
            0.3,
        )
    table[[1, 2], c.BIAS_ROW.value] = 0
    bench.rows.mask_rows[3] = 0
    entries = counts.int() | (in_prompt.int() << 30)
    state = SlotState(table.to(device), entries.to(device), biases.to(device), bench.state.last_tokens)
    shaped = bench.pipeline.shape(logits.to(device), bench.rows, state, masks.to(device)).cpu()
    expected = logits.double().clone()
    expected[1:3] += biases.double()
    for row in (0, 1):
        count, x = counts[1 - row], expected[row]
        x = torch.where((count > 0) | in_prompt[1 - row], torch.where(x > 0, x / 1.7, x * 1.7), x)
        expected[row] = x + 0.6 * (count > 0) - 0.3 * count
    expected[3][~allowed[0]] = -INF
    torch.testing.assert_close(shaped[:4].double(), expected[:4], rtol=1e-6, atol=1e-6)
    assert shaped[4].isnan().all()  # as it was allocated: nobody reads it


@pytest.fixture(autouse=True)
def poisoned_scratch() -> Iterator[None]:
    """In this mode torch.empty fills with NaN, and integers with their greatest."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
