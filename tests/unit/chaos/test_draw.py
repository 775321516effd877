from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import get_args

import pytest

from tests.chaos import draw, kept
from tests.chaos.draw import Planned, allowed, parts_of, rounds, serves, tier
from tests.chaos.fleet import STORM, Shape, link_name
from tests.chaos.member import Kind
from tests.chaos.nemesis import LastRelease

SHAPE = Shape()
KINDS = get_args(Kind)


def test_equal_seeds_give_equal_rounds() -> None:
    assert list(islice(rounds(7, SHAPE), 50)) == list(islice(rounds(7, SHAPE), 50))
    assert list(islice(rounds(7, SHAPE), 50)) != list(islice(rounds(8, SHAPE), 50))


def test_every_kind_and_part_has_its_turn() -> None:
    faults = [fault for one in islice(rounds(1, STORM), 1000) for fault in one.faults]
    kinds = {*draw.OF_PARTS, *draw.OF_LINKS, *draw.OF_TIERS, *draw.OF_REDIS, draw.DISK}
    assert {fault.kind for fault in faults} == kinds
    targets = {fault.target for fault in faults}
    assert targets >= {name for kind in ("gateway", "router", "scheduler", "worker") for name in STORM.names(kind)}
    assert len([target for target in targets if ">" in target]) == len(STORM.links)
    assert {fault.target for fault in faults if fault.kind == draw.KILL_ALL} == {
        *("schedulers of quire-chat", "workers of quire-chat"),
        *("schedulers of quire-chat-draft", "workers of quire-chat-draft"),
    }


def test_a_fleet_without_redis_has_no_trouble_with_it() -> None:
    faults = [fault for one in islice(rounds(1, SHAPE), 500) for fault in one.faults]
    assert not {fault.kind for fault in faults} & set(draw.OF_REDIS)


def test_parts_of_all_kinds_are_upgraded_from_the_last_release() -> None:
    faults = [fault for one in islice(rounds(1, STORM), 2000) for fault in one.faults if fault.kind == draw.UPGRADE]
    tiers = {tier(kind, group.model) for group in STORM.groups for kind in ("scheduler", "worker")}
    assert {fault.target for fault in faults} == {*tiers, "router", "gateway"}


def test_parts_that_use_redis_run_a_release_that_knows_it() -> None:
    release = LastRelease(Path("plain"), Path("redis"))
    plain = {name for kind in KINDS for name in STORM.names(kind) if release.of(name, STORM) == release.plain}
    assert plain == {*STORM.groups[0].schedulers, *STORM.groups[0].workers}
    assert release.of("router-0", SHAPE) == release.plain


def test_a_tier_has_the_parts_of_its_model() -> None:
    assert parts_of(STORM, "workers of quire-chat") == ("worker-0", "worker-1", "worker-2")
    assert parts_of(STORM, "schedulers of quire-chat-draft") == ("scheduler-2", "scheduler-3")
    assert parts_of(STORM, "router") == ("router-0", "router-1")
    assert parts_of(STORM, "gateway") == ("gateway-0", "gateway-1")


def test_no_round_takes_down_all_that_a_router_needs() -> None:
    shape = Shape(routers=2, schedulers=2, workers=2)
    for one in islice(rounds(3, shape), 1000):
        assert serves(shape, {fault.target for fault in one.faults if fault.kind != draw.DELAY})


def test_faults_wait_for_those_that_leave_too_little() -> None:
    down, kill = Planned(draw.DOWN, "scheduler-0>worker-0", 0, 1), Planned(draw.KILL, "scheduler-1", 0, 1)
    shape = Shape(routers=1, schedulers=2, workers=1)
    assert allowed(shape, [down], [])
    assert allowed(shape, [], [kill])
    assert not allowed(shape, [down], [kill])
    assert not allowed(SHAPE, [kill], [Planned(draw.STOP, "scheduler-1", 0, 1)])
    assert not allowed(SHAPE, [kill], [Planned(draw.ROLL, "worker", 0, 1)])
    assert allowed(SHAPE, [], [Planned(draw.ROLL, "worker", 0, 1)])
    full = Planned(draw.DISK, "disk", 0, 1)
    assert allowed(SHAPE, [full], [kill])
    assert not allowed(SHAPE, [full], [Planned(draw.KILL, "gateway-0", 0, 1)])
    gone, all_killed = Planned(draw.REDIS_GONE, "redis", 0, 1), Planned(draw.KILL_ALL, "workers of quire-chat", 0, 1)
    assert allowed(STORM, [gone], [kill])
    assert allowed(STORM, [gone], [Planned(draw.STOP, "router-0", 0, 1)])
    assert not allowed(STORM, [gone], [Planned(draw.KILL, "router-0", 0, 1)])
    assert not allowed(STORM, [gone], [Planned(draw.TERMINATE, "gateway-0", 0, 1)])
    assert not allowed(STORM, [kill], [all_killed])
    assert not allowed(STORM, [all_killed], [gone])


def test_a_fleet_serves_while_each_router_reaches_a_worker() -> None:
    shape = Shape(routers=2, schedulers=2, workers=2)
    assert serves(shape, set())
    assert serves(shape, {"router-0"})
    assert not serves(shape, {"router-0", "router-1"})
    assert not serves(shape, {"scheduler-0", "scheduler-1"})
    assert not serves(shape, {"worker-0", "worker-1"})
    assert not serves(shape, {"scheduler-0", "router-1>scheduler-1"})
    assert serves(shape, {"router-0", "router-0>scheduler-1"})
    assert not serves(shape, {"scheduler-0", "worker-0", "scheduler-1>worker-1"})
    assert serves(STORM, {"worker-3", "*>scheduler-2"})
    assert not serves(STORM, {"worker-3", "*>worker-4"})
    assert not serves(STORM, {"scheduler-3", "*>scheduler-2"})


def test_kept_rounds_are_read_as_they_were_written(tmp_path: Path) -> None:
    drawn = list(islice(rounds(3, STORM), 20))
    kept.write(tmp_path / "rounds.json", drawn)
    assert kept.read(tmp_path / "rounds.json") == drawn


@pytest.mark.parametrize("path", sorted(kept.KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_kept_rounds_are_of_the_fleet_as_it_is(path: Path) -> None:
    """Every target exists, and a round's faults may happen together."""
    for one in kept.read(path):
        assert allowed(STORM, (), one.faults)
        for fault in one.faults:
            known = {*(link_name(*link) for link in STORM.links), "redis", "disk"}
            known |= {name for kind in ("gateway", "router", "scheduler", "worker") for name in STORM.names(kind)}
            known |= {tier(kind, group.model) for group in STORM.groups for kind in ("scheduler", "worker")}
            assert fault.target in known | {"gateway", "router", "scheduler", "worker"}
