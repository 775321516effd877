"""The benchmark of discovery: times from changes of lists, and a small fleet in a real Redis."""

from __future__ import annotations

from benchmarks.discovery.members import Change, address_of
from benchmarks.discovery.phases import Shape, cold_start, failovers, rates, running_fleet, seconds_everywhere
from shared.discovery import Kind
from tests.fakes.redis_server import needs_redis


def test_a_part_is_known_everywhere_once_the_last_watcher_knows_it() -> None:
    changes = [Change(2.0, "s-1", ["a", "b"], []), Change(5.0, "s-2", ["a"], []), Change(9.0, "s-1", [], ["a"])]
    since = {"a": 1.0, "b": 1.5}
    assert seconds_everywhere(changes, ["a", "b"], since, is_gain=True) == [4.0, 0.5]
    assert seconds_everywhere(changes, ["a"], since, is_gain=False) == [8.0]


def test_a_thousand_addresses_differ() -> None:
    assert len({address_of(kind, index) for kind in Kind for index in range(1000)}) == 3000


@needs_redis
def test_a_small_fleet_knows_itself() -> None:
    with running_fleet(Shape(workers=5, schedulers=3, routers=2)) as (fleet, _):
        assert cold_start(fleet)["cold_start_from_last_s"] > 0
        before = fleet.read()
        assert fleet.are_registered()
        assert rates("some", before, fleet.read())["some_calls_per_s"] >= 0


@needs_redis
def test_a_small_fleet_outlives_a_failover() -> None:
    """No part is forgotten: each renews its lease at the new primary before it ends."""
    figures = failovers(Shape(workers=3, schedulers=2, routers=1), is_asked=False)
    assert figures["primary_killed_parts_forgotten"] == 0
    assert 0 < figures["primary_killed_only_primary_s"] <= figures["primary_killed_all_renewed_s"]
