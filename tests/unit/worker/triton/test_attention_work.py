"""How a batch's attention is divided: every position of every row once, within what was allocated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.worker.ops.triton.attention.work import WorkLayout

Rows = list[tuple[int, int]]  # (computed, scheduled)
TILE = 16
PART = 2  # tiles
QUERIES = 8


def layout(*, batch_invariant: bool = False, tiles_per_part: int = PART) -> WorkLayout:
    return WorkLayout(
        tile_size=TILE,
        parallel_items=4,
        queries_per_tile=QUERIES,
        max_items=20,
        max_num_seqs=10,
        max_num_batched_tokens=200,
        batch_invariant=batch_invariant,
        tiles_per_part=tiles_per_part,
    )


def batch(rows: Rows) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    starts = np.cumsum([0] + [scheduled for _, scheduled in rows], dtype=np.int32)
    positions = [np.arange(computed, computed + scheduled, dtype=np.int32) for computed, scheduled in rows]
    return starts, np.concatenate([np.zeros(0, np.int32), *positions])


def entries(plan: WorkLayout, rows: Rows) -> tuple[list[list[int]], list[list[int]]]:
    """The items and tiles as the kernels find them."""
    starts, positions = batch(rows)
    work = plan.lay_out(starts, positions).items
    assert len(work) == plan.size
    num_items, num_tiles = work[:2].tolist()
    assert num_items <= plan.max_items
    assert num_tiles <= plan.max_tiles
    items = work[2 : 2 + 6 * num_items].view(-1, 6).tolist()
    return items, work[plan.tiles_at : plan.tiles_at + 4 * num_tiles].view(-1, 4).tolist()


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 700), st.one_of(st.just(1), st.integers(0, 20))), max_size=10),
    batch_invariant=st.booleans(),
    tiles_per_part=st.sampled_from((0, PART)),
)
def test_every_query_has_its_keys_once(rows: Rows, batch_invariant: bool, tiles_per_part: int) -> None:
    plan = layout(batch_invariant=batch_invariant, tiles_per_part=tiles_per_part)
    starts = batch(rows)[0].tolist()
    items, tiles = entries(plan, rows)
    singles = [] if batch_invariant else [row for row, (_, scheduled) in enumerate(rows) if scheduled == 1]
    # A sequence's items are its parts in order, side by side. Each says how many they are and where they begin.
    for row in singles:
        computed = rows[row][0]
        own = [index for index, item in enumerate(items) if item[0] == row]
        num_parts = len(own)
        assert 1 <= num_parts <= computed // TILE + 1
        assert own == list(range(own[0], own[0] + num_parts))
        assert [items[index] for index in own] == [
            [row, starts[row], computed, part, num_parts, own[0]] for part in range(num_parts)
        ]
    assert {item[0] for item in items} == set(singles)
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


def num_parts(plan: WorkLayout, rows: Rows) -> list[int]:
    """The number of parts of each row, longest first."""
    return [item[4] for item in entries(plan, rows)[0] if item[3] == 0]


def test_parts_have_the_stored_size_while_there_is_room() -> None:
    assert num_parts(layout(), [(20 * PART * TILE - 1, 1)]) == [20]
    assert num_parts(layout(), [(20 * PART * TILE, 1)]) == [11]  # of twice as many tiles
    assert num_parts(layout(), [(1_000_000, 1)] * 10) == [1] * 10


def test_few_sequences_have_many_parts_and_many_have_one() -> None:
    """Joins cost as much as some tiles, so sequences are cut only where that keeps more of the GPU busy."""
    plan = replace(layout(tiles_per_part=0), parallel_items=49)
    assert num_parts(plan, [(8 * TILE - 1, 1)]) == [4]
    assert num_parts(plan, [(64 * TILE - 1, 1)])[0] > 6
    assert num_parts(replace(plan, max_num_batched_tokens=640), [(9 * TILE - 1, 1)] * 10) == [2] * 10
    assert num_parts(replace(plan, parallel_items=8), [(9 * TILE - 1, 1)] * 10) == [1] * 10


def test_long_sequences_come_first() -> None:
    items = entries(layout(), [(5, 1), (90, 1), (40, 1)])[0]
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
