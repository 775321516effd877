"""With `batch_invariant` a token's bits depend on its own sequence alone: not on its company, nor on how it was cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.worker.triton.attention_steps import FP8, SMALL, Model, Row, lay_out, random_text

# Rows of a block that no query fills may see nothing, and exp2 overflows where it should: numpy remarks on both.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


MODELS = [
    pytest.param(Model(), marks=pytest.mark.thorough),
    Model(3, 1, 80, 16, torch.float16, torch.float16, window=20),
    pytest.param(Model(4, 1, 64, 32, torch.bfloat16, FP8, soft_cap=20.0), marks=pytest.mark.thorough),
]
LENGTHS = (70, 33, 16)


@settings(max_examples=4, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_bits_are_the_same_alone_or_in_a_crowd_and_whole_or_in_chunks(
    device: torch.device, model: Model, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(1)
    texts = [random_text(model, length, generator) for length in LENGTHS]
    attention = model.attention(device, batch_invariant=True)
    done = [0] * len(texts)
    pieces: list[list[Tensor]] = [[] for _ in texts]
    while unfinished := [index for index, length in enumerate(LENGTHS) if done[index] < length]:
        due = data.draw(st.permutations(unfinished))[: data.draw(st.integers(1, len(unfinished)))]
        rows = [Row(texts[index], done[index], data.draw(st.sampled_from([1, 7, 64]))) for index in due]
        rows = [replace(row, scheduled=min(row.scheduled, len(row.text.q) - row.computed)) for row in rows]
        step = lay_out(model, rows, device, seed=data.draw(st.integers(0, 9)))
        chunks = torch.split(step.run(attention)[: step.num_tokens], [row.scheduled for row in rows])
        for index, row, chunk in zip(due, rows, chunks, strict=True):
            pieces[index].append(chunk)
            done[index] = row.end
    for text, own in zip(texts, pieces, strict=True):
        step = lay_out(model, [Row(text, 0, len(text.q))], device)
        assert torch.equal(torch.cat(own), step.run(attention)[: step.num_tokens])


def test_without_the_flag_bits_depend_on_the_path_that_a_token_takes(device: torch.device) -> None:
    """So that the test above is known to tell."""
    model = Model()
    text = random_text(model, 100, torch.Generator().manual_seed(2))
    attention = model.attention(device, SMALL)
    whole = lay_out(model, [Row(text, 0, 100)], device).run(attention)[99]
    alone = lay_out(model, [Row(text, 99, 1)], device).run(attention)[0]
    torch.testing.assert_close(alone, whole, rtol=1e-5, atol=1e-5)
    assert not torch.equal(alone, whole)
