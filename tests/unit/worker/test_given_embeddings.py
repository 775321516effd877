"""Which embeddings a sequence can bring, and what they leave alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.worker.errors import PlanError
from services.worker.plan.batch import BatchState, Limits
from services.worker.plan.given_embeddings import GivenEmbeddings
from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.step_plan import GeneratingSequence, PoolingSequence, Rows, StepPlan
from services.worker.pooling import PoolingParams
from tests.unit.worker.driver import NO_ROWS, Driver, Request, column
from tests.unit.worker.given_embeddings import EmbeddingReference
from tests.unit.worker.tiny_models import make_runner, save_model

HIDDEN = 4
LIMITS = Limits(num_blocks=8, block_size=8, max_num_seqs=2, max_num_batched_tokens=16, max_model_len=40, vocab_size=9)


def rows_at(*positions: int) -> GivenEmbeddings:
    """Row i is full of its position."""
    rows = np.repeat(np.array(positions, np.float32)[:, None], HIDDEN, axis=1)
    return GivenEmbeddings(np.array(positions, np.int64), rows)


def new_sequence(wire_id: int, slot: int, num_tokens: int, embeddings: GivenEmbeddings | None) -> GeneratingSequence:
    return GeneratingSequence(
        wire_id, slot, column([1] * num_tokens), num_tokens, 0, column([slot]), SamplingParams(), 0,
        embeddings=embeddings,
    )  # fmt: skip


def planned(*entries: tuple[int, int, int, int]) -> Rows:
    """(wire id, slot, tokens scheduled, tokens computed before)"""
    ids, slots, scheduled, computed = (column(list(values)) for values in zip(*entries, strict=True))
    return Rows(ids, slots, scheduled, computed, column([0] * (len(entries) + 1)), column([]))


def test_a_step_has_the_embeddings_of_its_own_tokens() -> None:
    state = BatchState(LIMITS)
    state.admit(new_sequence(1, 1, 6, rows_at(0, 2, 3, 5)))
    state.admit(new_sequence(2, 0, 3, None))
    batch = state.schedule(planned((2, 0, 2, 0), (1, 1, 3, 0)))
    assert batch.embeddings is not None
    assert batch.embeddings.at.tolist() == [2, 4]
    assert batch.embeddings.rows[:, 0].tolist() == [0, 2]
    batch = state.schedule(planned((2, 0, 1, 2)))
    assert batch.embeddings is None
    batch = state.schedule(planned((1, 1, 3, 3)))
    assert batch.embeddings is not None
    assert batch.embeddings.at.tolist() == [0, 2]
    assert batch.embeddings.rows[:, 0].tolist() == [3, 5]
    assert state.schedule(planned((1, 1, 1, 6))).embeddings is None, "a sampled token has the embedding of its id"


def test_the_next_sequence_of_a_slot_has_no_embeddings() -> None:
    state = BatchState(LIMITS)
    state.admit(new_sequence(1, 1, 6, rows_at(0, 2)))
    state.release(StepPlan(1, 1, column([1]), (), NO_ROWS))
    state.admit(new_sequence(2, 1, 6, None))
    assert state.schedule(planned((2, 1, 6, 0))).embeddings is None


@pytest.mark.parametrize(
    "embeddings",
    [
        rows_at(0, 6),
        rows_at(-1, 2),
        rows_at(2, 2),
        rows_at(3, 2),
        GivenEmbeddings(np.array([1, 2]), np.zeros((3, HIDDEN), np.float32)),
        GivenEmbeddings(np.array([1, 2]), np.zeros(2, np.float32)),
    ],
)
def test_embeddings_of_other_tokens_are_refused(embeddings: GivenEmbeddings) -> None:
    with pytest.raises(PlanError, match="new sequence 1 brings embeddings that do not fit its tokens"):
        BatchState(LIMITS).admit(new_sequence(1, 0, 6, embeddings))


def test_an_encoder_takes_no_embeddings() -> None:
    limits = Limits(2, 40, 2, 40, 40, 9, has_kv_cache=False)
    sequence = PoolingSequence(1, 0, column([1, 2]), 2, 0, column([0]), PoolingParams(), embeddings=rows_at(1))
    with pytest.raises(PlanError, match="brings embeddings, but the model is an encoder"):
        BatchState(limits).admit(sequence)


@pytest.mark.usefixtures("one_thread", "batch_invariant")
def test_embeddings_change_no_bit_of_other_sequences(tmp_path: Path) -> None:
    reference = EmbeddingReference(save_model(tmp_path, "Llama"))
    runner = make_runner(tmp_path)
    alone = [reference.request(length, 6) for length in (3, 20)]
    together = [Request(request.prompt, 6, request.sampling) for request in alone]
    for request in alone:
        Driver(runner).run(request)
    Driver(runner, seed=1, max_chunk=7).run(*together, reference.request(30, 6, given=range(2, 25)))
    assert [(one.output, one.logprobs) for one in alone] == [(one.output, one.logprobs) for one in together]
