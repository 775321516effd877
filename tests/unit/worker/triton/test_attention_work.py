"""How a batch's attention is divided: every position of every row once, within what was allocated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.worker.ops.triton.attention.work import WorkLayout

Rows = list[tuple[int, int]]  # (computed, scheduled)
SPLIT = 32
QUERIES = 8


def layout(*, batch_invariant: bool = False) -> WorkLayout:
    return WorkLayout(
        split_size=SPLIT,
        queries_per_tile=QUERIES,
        max_items=20,
        max_num_seqs=10,
        max_num_batched_tokens=200,
        batch_invariant=batch_invariant,
    )


def batch(rows: Rows) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    starts = np.cumsum([0] + [scheduled for _, scheduled in rows], dtype=np.int32)
    positions = [np.arange(computed, computed + scheduled, dtype=np.int32) for computed, scheduled in rows]
    return starts, np.concatenate([np.zeros(0, np.int32), *positions])


def entries(plan: WorkLayout, rows: Rows) -> tuple[int, list[list[int]], list[list[int]], list[list[int]]]:
    """The split, items, joins and tiles as the kernels find them."""
    starts, positions = batch(rows)
    work = plan.lay_out(starts, positions).items
    assert len(work) == plan.size
    num_items, split, num_joins, num_tiles = work[:4].tolist()
    assert num_items <= plan.max_items
    assert num_tiles <= plan.max_tiles
    lists = [
        work[at : at + 4 * count].view(-1, 4).tolist()
        for at, count in ((4, num_items), (plan.joins_at, num_joins), (plan.tiles_at, num_tiles))
    ]
    return split, lists[0], lists[1], lists[2]


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 700), st.one_of(st.just(1), st.integers(0, 20))), max_size=10),
    batch_invariant=st.booleans(),
)
def test_every_query_has_its_keys_once(rows: Rows, batch_invariant: bool) -> None:
    plan = layout(batch_invariant=batch_invariant)
    starts = batch(rows)[0].tolist()
    split, items, joins, tiles = entries(plan, rows)
    singles = [] if batch_invariant else [row for row, (_, scheduled) in enumerate(rows) if scheduled == 1]
    # A sequence's items are its stretches in order, side by side, and its join says where they begin.
    expected_joins = []
    for row in singles:
        computed = rows[row][0]
        own = [index for index, item in enumerate(items) if item[0] == row]
        num_parts = computed // split + 1
        assert own == list(range(own[0], own[0] + num_parts))
        assert [items[index] for index in own] == [[row, starts[row], computed, part] for part in range(num_parts)]
        if num_parts > 1:
            expected_joins.append([starts[row], computed, own[0], 0])
    assert len(items) == sum(rows[row][0] // split + 1 for row in singles)
    assert sorted(joins) == sorted(expected_joins)
    # The tiles of the other rows are theirs, cut every QUERIES queries.
    expected_tiles = [
        [row, starts[row] + skipped, computed + skipped, min(QUERIES, scheduled - skipped)]
        for row, (computed, scheduled) in enumerate(rows)
        if row not in singles
        for skipped in range(0, scheduled, QUERIES)
    ]
    assert sorted(tiles) == sorted(expected_tiles)
    ends = [position + count for _, _, position, count in tiles]
    assert ends == sorted(ends, reverse=True)


def test_the_split_is_the_stored_one_while_there_is_room() -> None:
    assert entries(layout(), [(20 * SPLIT - 1, 1)])[0] == SPLIT
    assert entries(layout(), [(20 * SPLIT, 1)])[0] == 2 * SPLIT
    assert entries(layout(), [(1_000_000, 1)] * 10)[0] == 2**14 * SPLIT  # two stretches each


def test_long_sequences_come_first() -> None:
    items = entries(layout(), [(5, 1), (90, 1), (40, 1)])[1]
    assert [item[0] for item in items] == [1, 1, 1, 2, 2, 0]


def test_the_bounds_say_what_to_launch() -> None:
    rows: Rows = [(5, 1), (0, 0), (90, 1), (0, 9)]
    mixed = layout().lay_out(*batch(rows))
    assert (mixed.num_decodes, mixed.num_tiles) == (2, 2)
    invariant = layout(batch_invariant=True).lay_out(*batch(rows))
    assert (invariant.num_decodes, invariant.num_tiles) == (0, 4)
    nothing = layout().lay_out(*batch([]))
    assert (nothing.num_decodes, nothing.num_tiles) == (0, 0)


@pytest.mark.parametrize("rows", [[(0, 1)] * 11, [(0, 201)]])
def test_more_than_the_limits_is_refused(rows: Rows) -> None:
    with pytest.raises(ValueError, match="at most 10 rows and 200 tokens"):
        layout().lay_out(*batch(rows))
