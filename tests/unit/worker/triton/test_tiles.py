"""How products are cut into programs."""

from __future__ import annotations

import pytest

from services.worker.ops.triton import eight_bit, eight_bit_weights, experts, four_bit, matmul, tiles

SPLITTING = [eight_bit.QUANTIZED, eight_bit_weights.HALF, four_bit.HALF]
TABLES = [
    *SPLITTING, eight_bit_weights.HALF_IN_GROUPS, eight_bit_weights.SINGLE, four_bit.HALF_IN_GROUPS, four_bit.SINGLE,
    matmul.HALF, matmul.SINGLE, experts.HALF, experts.SINGLE,
]  # fmt: skip
PROCESSORS = 132  # of an H200


@pytest.mark.parametrize("table", SPLITTING)
def test_few_rows_fill_the_device_and_several_tiles_of_rows_are_not_split(table: tiles.TileTable) -> None:
    """4096 outputs are 32 or 64 tiles. The programs come close to the most that are wanted, but do not exceed it."""
    for rows in (1, 16, 17, 32, 33, 64, 65, 128):
        chosen = table.of(rows)
        plan = tiles.cut(chosen, rows, 4096, 14336 // 128, may_split=True)
        assert 0.9 * PROCESSORS <= plan.tiles * plan.splits <= chosen.programs
        assert plan == tiles.cut(chosen, chosen.rows, 4096, 14336 // 128, may_split=True)
        assert tiles.cut(chosen, rows, 4096, 32, may_split=False).splits == 1
        assert tiles.cut(chosen, rows, 65536, 32, may_split=True).splits == 1
    row_tiles = -(-300 // table.of(300).rows)
    assert tiles.cut(table.of(300), 300, 4096, 32, may_split=True) == tiles.Cut(row_tiles * 32, 1, 32)


@pytest.mark.parametrize("table", TABLES)
def test_a_product_uses_the_first_class_that_holds_its_rows(table: tiles.TileTable) -> None:
    """The last class can have any number of rows per tile: it also has what the others do not hold."""
    before = 0
    for index, chosen in enumerate(table.classes):
        assert chosen.rows > before or index == len(table.classes) - 1, "the classes ascend"
        assert all(table.of(rows) is chosen for rows in range(before + 1, chosen.rows + 1))
        before = max(before, chosen.rows)
    assert table.of(before + 1) is table.of(1_000_000) is table.classes[-1]


@pytest.mark.parametrize("table", TABLES)
def test_all_classes_have_the_same_steps_of_k(table: tiles.TileTable) -> None:
    """In batch-invariant mode, a row has the same sums in every class."""
    assert {chosen.k for chosen in table.classes} == {table.k}


@pytest.mark.parametrize(("n", "steps"), [(64, 1), (64, 7), (64, 33), (6144, 100)])
def test_stretches_cover_k_once(n: int, steps: int) -> None:
    for chosen in eight_bit_weights.HALF.classes:
        plan = tiles.cut(chosen, 3, n, steps, may_split=True)
        assert (plan.splits - 1) * plan.steps < steps <= plan.splits * plan.steps
