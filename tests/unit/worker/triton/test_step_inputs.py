"""What a step's kernels read, against the plan as it was laid out."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
import torch

from services.worker.ops.interface import AttentionShape
from services.worker.ops.triton.ops import TritonOps
from services.worker.plan.batch import BatchState, Limits
from services.worker.plan.given_embeddings import GivenEmbeddings
from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.step_plan import GeneratingSequence, Rows, StepPlan
from services.worker.step.inputs import SlotTables, StepInputs

GREEDY = SamplingParams(temperature=0.0)


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(values, np.uint32)


def admit(
    state: BatchState,
    wire_id: int,
    slot: int,
    tokens: list[int],
    blocks: list[int],
    embeddings: GivenEmbeddings | None = None,
) -> None:
    state.admit(
        GeneratingSequence(
            wire_id, slot, column(*tokens), len(tokens), 0, column(*blocks), GREEDY, 0, embeddings=embeddings
        )
    )


def rows(*entries: tuple[int, int, int, int, list[int]]) -> Rows:
    """(wire id, slot, scheduled, computed, new blocks)"""
    ids, slots, scheduled, computed, blocks = zip(*entries, strict=True)
    offsets = np.cumsum([0, *map(len, blocks)]).tolist()
    return Rows(
        column(*ids),
        column(*slots),
        column(*scheduled),
        column(*computed),
        column(*offsets),
        column(*chain.from_iterable(blocks)),
    )


def test_rows_are_slots_and_samples_keep_the_plan_s_order(device: torch.device) -> None:
    limits = Limits(64, 4, 5, 32, 40, 199)
    ops = TritonOps(device, torch.float32)
    ops.prepare_attention([AttentionShape(2, 1, 16, 16, 4, torch.float32, torch.float32)], 5, 32)
    inputs, state = StepInputs(ops, limits), BatchState(limits)
    admit(state, 1, 3, [30, 31, 32], [1])
    admit(state, 2, 0, [40, 41], [2])
    admit(state, 3, 4, [50, 51, 52, 53, 54], [3, 4])
    batch = state.schedule(rows((3, 4, 4, 0, []), (1, 3, 3, 0, []), (2, 0, 2, 0, [])))
    inputs.send(batch, batch.sampled_tokens)
    batch = state.schedule(rows((1, 3, 1, 3, []), (3, 4, 1, 4, []), (2, 0, 1, 2, [])))
    assert batch.wire_ids.tolist() == [1, 3, 2]
    work, _ = inputs.send(batch, np.append(batch.sampled_tokens, 0))
    assert inputs.query_starts.tolist() == [0, 1, 1, 1, 2, 3]
    # Slots 0 and 3 go on from what they drew; slot 4 still has a token of its prompt.
    assert inputs.token_ids[:4].tolist() == [-1 - 0, -1 - 3, 54, 0]
    assert inputs.positions[:4].tolist() == [2, 3, 4, 0]
    # Those that sample, in the plan's order; then one more, which stands behind slot 0's.
    assert inputs.wanted[:4].tolist() == [1, 2, 0, 1]
    assert (work.num_decodes, work.num_tiles) == (3, 0)
    expected = ops.plan_attention(np.array([0, 1, 1, 1, 2, 3], np.int32), np.array([2, 3, 4], np.int32))
    assert torch.equal(work.items.cpu(), expected.items)


def test_given_embeddings_follow_their_tokens(device: torch.device) -> None:
    limits = Limits(64, 4, 5, 32, 40, 199)
    ops = TritonOps(device, torch.float32)
    ops.prepare_attention([AttentionShape(2, 1, 16, 16, 4, torch.float32, torch.float32)], 5, 32)
    inputs, state = StepInputs(ops, limits), BatchState(limits)
    admit(state, 1, 3, [30, 31, 32], [1], GivenEmbeddings(np.array([1, 2]), np.array([[31], [32]], np.float32)))
    admit(state, 2, 0, [40, 41], [2], GivenEmbeddings(np.array([0]), np.array([[40]], np.float32)))
    batch = state.schedule(rows((1, 3, 3, 0, []), (2, 0, 2, 0, [])))
    _, embeddings = inputs.send(batch, batch.sampled_tokens)
    assert embeddings is not None
    assert inputs.token_ids[:5].tolist() == [40, 41, 30, 31, 32], "rows are slots"
    assert inputs.token_ids[embeddings.at].tolist() == embeddings.rows[:, 0].tolist() == [31, 32, 40]
    batch = state.schedule(rows((1, 3, 1, 3, []), (2, 0, 1, 2, [])))
    assert inputs.send(batch, batch.sampled_tokens)[1] is None


@pytest.mark.parametrize("capacity", [1, 7, 4096])
def test_block_tables_get_what_is_new_and_nothing_of_a_former_owner_counts(device: torch.device, capacity: int) -> None:
    limits = Limits(200, 1, 4, 64, 50, 199)
    state, tables = BatchState(limits), SlotTables(limits, device)
    tables._capacity = capacity
    chance = random.Random(capacity)
    lengths: dict[int, tuple[int, int]] = {}  # by slot: wire id, tokens computed
    for step in range(1, 30):
        if lengths and chance.random() < 0.3:
            slot = chance.choice(list(lengths))
            state.release(StepPlan(1, step, column(lengths.pop(slot)[0]), (), rows((9, 9, 9, 9, []))))
        for slot in set(range(4)) - set(lengths):
            tokens = [1] * chance.randint(1, 9)
            admit(state, 10 * step + slot, slot, tokens, [])
            lengths[slot] = (10 * step + slot, 0)
        entries = []
        for slot, (wire_id, computed) in lengths.items():
            if chance.random() < 0.7 and computed < 45:
                entries.append((wire_id, slot, 1, computed, [chance.randrange(200)]))
                lengths[slot] = (wire_id, computed + 1)
        if not entries:
            continue
        batch = state.schedule(rows(*entries))
        tables.send(batch.wire_ids, batch.slots, batch.num_blocks, state.block_tables)
        for slot, num_blocks in zip(batch.slots.tolist(), batch.num_blocks.tolist(), strict=True):
            assert tables.tables[slot, :num_blocks].tolist() == state.block_tables[slot, :num_blocks].tolist()


def test_another_epoch_s_sequence_of_the_same_name_is_another(device: torch.device) -> None:
    limits = Limits(200, 1, 2, 64, 50, 199)
    tables, host = SlotTables(limits, device), np.zeros((2, 50), np.int32)
    one = np.ones(1, np.int64)
    host[1, :3] = (7, 8, 9)
    tables.send(one, one, 3 * one, host)
    tables.reset()
    host[1, :3] = (4, 5, 6)
    tables.send(one, one, 3 * one, host)
    assert tables.tables[1, :3].tolist() == [4, 5, 6]


def test_only_what_is_new_is_sent(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(200, 1, 2, 64, 50, 199)
    tables, host = SlotTables(limits, device), np.zeros((2, 50), np.int32)
    sent: list[int] = []
    scatter = SlotTables._scatter

    def counted(self: SlotTables, at: np.ndarray[tuple[int], np.dtype[np.int64]], *rest: object) -> None:
        sent.append(len(at))
        scatter(self, at, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(SlotTables, "_scatter", counted)
    ids, slots = np.array([5, 6]), np.array([1, 0])
    for num_blocks in ((3, 2), (3, 2), (4, 2)):
        tables.send(ids, slots, np.array(num_blocks), host)
    assert sent == [5, 1]
