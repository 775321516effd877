"""How products are cut into programs."""

from __future__ import annotations

import pytest

from services.worker.ops.triton import eight_bit, eight_bit_weights, four_bit, tiles


@pytest.mark.parametrize("table", [eight_bit.QUANTIZED, eight_bit_weights.HALF, four_bit.HALF])
def test_few_rows_fill_the_device_and_several_tiles_of_rows_are_not_split(table: tiles.TileTable) -> None:
    """4096 outputs are 64 tiles, for 132 processors."""
    for rows in (1, 16, 17, 64):
        plan = tiles.cut(table.of(rows), rows, 4096, 4096 // 128, may_split=True)
        assert plan.tiles * plan.splits >= 198
        assert plan == tiles.cut(table.of(rows), table.of(rows).rows, 4096, 32, may_split=True)
        assert tiles.cut(table.of(rows), rows, 4096, 32, may_split=False).splits == 1
        assert tiles.cut(table.of(rows), rows, 65536, 32, may_split=True).splits == 1
    assert tiles.cut(table.of(300), 300, 4096, 32, may_split=True) == tiles.Cut(3 * 32, 1, 32)


@pytest.mark.parametrize(("n", "steps"), [(64, 1), (64, 7), (64, 33), (6144, 100)])
def test_stretches_cover_k_once(n: int, steps: int) -> None:
    plan = tiles.cut(eight_bit_weights.HALF.few, 3, n, steps, may_split=True)
    assert (plan.splits - 1) * plan.steps < steps <= plan.splits * plan.steps
