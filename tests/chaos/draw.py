"""Draws the faults of a run from a seed.

A storm is a row of rounds. The faults of a round overlap, and also overlap with those of earlier rounds that are not
over yet. But a round is drawn, and begins, only if the fleet can still serve: every router that is left reaches a
scheduler of each model that reaches a worker. There are exceptions: a fault of a whole tier, such as all workers of a
model, which meets no other fault.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar, get_args

from tests.chaos.fleet import Group, Shape, link_name
from tests.chaos.member import Kind

T = TypeVar("T", bound=str)
# Kinds of faults. The first line concerns a part, the second a link.
KILL, STOP, TERMINATE = "kill", "stop", "terminate"
DOWN, CUT, DELAY, STALL = "link down", "link cut", "link delay", "link stall"
ROLL, UPGRADE, KILL_ALL = "rolling restart", "rolling upgrade", "kill of a tier"
MEMORY, DISK = "memory limit", "full disk"
REDIS_STOP, REDIS_KILL, REDIS_EMPTY, REDIS_FAILOVER = "Redis stopped", "Redis killed", "Redis emptied", "Redis failover"
REDIS_GONE, REDIS_DOWN, REDIS_STALL = "Redis gone", "Redis link down", "Redis link stall"
SENTINEL_STOP = "Sentinel stopped"
OF_PARTS = (KILL, STOP, TERMINATE, MEMORY)
OF_LINKS = (DOWN, CUT, DELAY, STALL)
OF_TIERS = (ROLL, UPGRADE, KILL_ALL)
# Faults that tell a part to end. It finishes what it has begun, or hands it over.
GRACEFUL = (TERMINATE, ROLL, UPGRADE)
OF_REDIS = (REDIS_STOP, REDIS_KILL, REDIS_EMPTY, REDIS_FAILOVER, REDIS_GONE, REDIS_DOWN, REDIS_STALL, SENTINEL_STOP)
# Faults after which a part starts anew.
_RESTARTS = (KILL, TERMINATE, MEMORY)
# Relative frequencies. "redis" stands for any of OF_REDIS.
_REDIS = "redis"
_KINDS = {
    KILL: 6, STOP: 4, TERMINATE: 4, DOWN: 3, CUT: 3, DELAY: 2, STALL: 3, ROLL: 1, MEMORY: 3, DISK: 1, UPGRADE: 1,
    KILL_ALL: 1, _REDIS: 4,
}  # fmt: skip
_TIERS: dict[Kind, int] = {"worker": 5, "scheduler": 4, "router": 2, "gateway": 1}
# How long a part is stopped, or a link in trouble: mostly short, sometimes longer than its peers wait.
_SHORT_S, _LONG_S, _LONG_CHANCE = (0.2, 4.0), (10.0, 18.0), 0.2
_PAIR_CHANCE = 0.3


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault to carry out. `target`: the name of a part, of a link, of a kind of part if all of them are restarted or
    upgraded in turn, or of a tier. `after_s`: seconds from the round's start. `seconds`: how long the part stays down
    after its exit or stays stopped, or the link in trouble."""

    kind: str
    target: str
    after_s: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} {self.target}, {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Round:
    """`rest_s`: seconds from the round's start to the next round, which may have to wait longer."""

    faults: tuple[Planned, ...]
    rest_s: float


def rounds(seed: int, shape: Shape) -> Iterator[Round]:
    """Yields rounds without end. Equal seeds and shapes give equal rounds."""
    chance = random.Random(seed)
    while True:
        faults = [_fault(chance, shape, 0.0)]
        if faults[0].kind not in OF_TIERS and chance.random() < _PAIR_CHANCE:
            second = _fault(chance, shape, chance.uniform(0.0, 1.5))
            if second.kind not in OF_TIERS:
                faults.append(second)
        if allowed(shape, (), faults):
            yield Round(tuple(faults), chance.uniform(1.0, 6.0))


def allowed(shape: Shape, under_way: Iterable[Planned], new: Iterable[Planned]) -> bool:
    """Returns whether the new faults may begin while others are under way. A fault of a tier tolerates no other fault,
    and a part or link is under one fault at a time. A router that starts while nobody can reach Redis does not know the
    schedulers that are registered there, and a gateway not the routers."""
    faults = [*under_way, *new]
    targets = {fault.target for fault in faults}
    if len(targets) < len(faults) or (len(faults) > 1 and any(fault.kind in OF_TIERS for fault in faults)):
        return False
    finders = {*shape.names("router"), *shape.names("gateway")}
    if _REDIS in targets and any(fault.kind in _RESTARTS and fault.target in finders for fault in faults):
        return False
    # A gateway cannot start on a full disk, because Envoy reads its configuration from a file.
    if "disk" in targets and not targets.isdisjoint(shape.names("gateway")):
        return False
    return serves(shape, {fault.target for fault in faults if fault.kind != DELAY})


def tier(kind: Kind, model: str) -> str:
    """Returns the name of all parts of a kind that serve a model."""
    return f"{kind}s of {model}"


def parts_of(shape: Shape, target: str) -> tuple[str, ...]:
    """Returns the parts of a tier, or of a kind."""
    for kind in get_args(Kind):
        if target == kind:
            return tuple(shape.names(kind))
    kinds: tuple[Kind, ...] = ("scheduler", "worker")
    return next(g.names(kind) for g in shape.groups for kind in kinds if tier(kind, g.model) == target)


def serves(shape: Shape, down: set[str]) -> bool:
    """Returns whether a gateway is left, and each router that is left can have requests of every model answered.
    `down`: names of parts and links. Where there is only one gateway, it may be down."""

    gateways = shape.names("gateway")
    left = [name for name in gateways if name not in down] if len(gateways) > 1 else gateways
    routers = {name for gateway in left for name in _reached(shape, down, gateway, shape.names("router"))}
    return bool(routers) and all(
        reaches_worker(shape, down, router, group) for router in routers for group in shape.groups
    )


def reaches_worker(shape: Shape, down: set[str], router: str, group: Group) -> bool:
    """Returns whether a router reaches a scheduler of the group that reaches a worker."""
    schedulers = _reached(shape, down, router, group.schedulers)
    return any(_reached(shape, down, scheduler, group.workers) for scheduler in schedulers)


def _reached(shape: Shape, down: set[str], caller: str, callees: Iterable[str]) -> list[str]:
    return [name for name in callees if name not in down and shape.link(caller, name) not in down]


def _fault(chance: random.Random, shape: Shape, after_s: float) -> Planned:
    kind = _weighted(chance, {kind: weight for kind, weight in _KINDS.items() if kind != _REDIS or shape.has_redis})
    if kind == _REDIS:
        kind = chance.choice(OF_REDIS)
        return Planned(kind, _REDIS, after_s, 0.0 if kind in (REDIS_EMPTY, REDIS_FAILOVER) else _seconds(chance, kind))
    if kind in (UPGRADE, KILL_ALL):
        below: tuple[Kind, ...] = ("scheduler", "worker")
        tiers = [tier(one, group.model) for group in shape.groups for one in below]
        if kind == UPGRADE:
            return Planned(kind, chance.choice([*tiers, "router", "gateway"]), after_s, 0.0)
        return Planned(kind, chance.choice(tiers), after_s, _seconds(chance, kind))
    if kind in OF_LINKS:
        target = link_name(*chance.choice(shape.links))
    else:
        part = _weighted(chance, _TIERS)
        if kind == DISK:
            return Planned(kind, "disk", after_s, _seconds(chance, kind))
        if kind == MEMORY:
            part = "scheduler" if part == "gateway" else part
        if kind == ROLL:
            return Planned(kind, part, after_s, 0.0)
        target = chance.choice(shape.names(part))
    return Planned(kind, target, after_s, 0.0 if kind == CUT else _seconds(chance, kind))


def _seconds(chance: random.Random, kind: str) -> float:
    is_long = kind in (STOP, STALL, DOWN, *OF_REDIS) and chance.random() < _LONG_CHANCE
    return round(chance.uniform(*(_LONG_S if is_long else _SHORT_S)), 1)


def _weighted(chance: random.Random, weights: dict[T, int]) -> T:
    return chance.choices(list(weights), list(weights.values()))[0]
