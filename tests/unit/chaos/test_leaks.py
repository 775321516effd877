from __future__ import annotations

import dataclasses

import pytest

from benchmarks.soak.figures import Figures
from tests.chaos.fleet import Shape
from tests.chaos.leaks import grown

SHAPE = Shape(routers=2, schedulers=1, workers=1)
NAMES = ("gateway-0", "router-0", "router-1", "scheduler-0", "worker-0")
BEFORE = {name: Figures(100_000_000, descriptors=50, sockets=20, threads=30, processes=2) for name in NAMES}


def test_parts_that_hold_as_much_as_before_are_in_order() -> None:
    assert grown(SHAPE, BEFORE, BEFORE, 0) == []


@pytest.mark.parametrize(
    ("added", "found"),
    [
        ({"descriptors": 9}, "router-1: 59 descriptors, 50 at first"),
        ({"threads": 9}, "router-1: 39 threads, 30 at first"),
        ({"processes": 4}, "router-1: 6 processes, 2 at first"),
        ({"resident_bytes": 33_000_000}, "router-1: 33 MB more, 33000000 bytes per request"),
    ],
)
def test_a_part_that_holds_more_is_found(added: dict[str, int], found: str) -> None:
    one = BEFORE["router-1"]
    more = dataclasses.replace(one, **{name: getattr(one, name) + amount for name, amount in added.items()})
    assert grown(SHAPE, BEFORE, BEFORE | {"router-1": more}, 0) == [found]


def test_memory_may_grow_with_the_number_of_requests() -> None:
    more = dataclasses.replace(BEFORE["worker-0"], resident_bytes=133_000_000)
    assert grown(SHAPE, BEFORE, BEFORE | {"worker-0": more}, 10_000) == []
