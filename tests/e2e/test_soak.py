"""A short form of `make soak`: some requests of every API with some of the abuse in them, and nothing is left of them.
It compares no memory: so few requests are less than an allocator's chance."""

from __future__ import annotations

from benchmarks.abuse.rows import ROWS
from benchmarks.soak.__main__ import soak
from benchmarks.soak.report import summary
from benchmarks.soak.run import Plan, Stretch

# Those that cost little.
WORDS = ("malformed HTTP", "template bomb: a string of 10^9", "prompt_token_ids of 7 bytes")


def test_lawful_requests_are_answered_and_nothing_is_left_of_them() -> None:
    rows = [row for row in ROWS if any(word in row.name for word in WORDS)]
    result = soak(Plan([Stretch(requests=8, rows=1)] * 3, rows, clients=4, pause_s=0, rest_s=0))
    assert result.faults == [], summary(result)
    # Clients go on until the row is answered.
    assert result.tally.answered.total() >= 4 * 3 * 8
    assert result.tally.rows == {row.name: 1 for row in rows}
    assert result.tally.num_compared > 0
    assert len(result.points) == 3
    assert not any(point.load.used_blocks for point in result.points)
    assert result.points[-1].parts.keys() == {"worker", "scheduler", "router", "gateway"}
