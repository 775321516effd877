"""Runs one seed: a fleet, its clients and its faults; then checks that nothing is lost and nothing is left."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from shared import clock
from shared.discovery import Kind
from tests.virtual.clients import Client, draw_requests, poison
from tests.virtual.discovery import View
from tests.virtual.loop import Violation, World
from tests.virtual.nemesis import DRAWN, Nemesis, Numbers, num_faults_in
from tests.virtual.network import Network
from tests.virtual.parts import Part, RouterPart, SchedulerPart, Setting, WorkerPart

NUM_REQUESTS = 20
# Virtual seconds: faults begin within the first two; after the last one, every request ends within the limit.
_FAULTS_UNTIL_S = 2.5
_ALL_FAULTS_END_S = 25.0
_LIMIT_S = 200.0
# When all requests have ended and all faults too, schedulers are idle within this time.
_IDLE_S = 0.5
_SETTLE_S = 6.0
# gRPC loses no message, so only a worker's silence tells that the result of the last plan was lost. The scheduler gives
# up one worker per 10 s, and is patient with the first step of a kind.
_LOST_RESULT_S = 100.0
# Limit for the number of workers that one choice of a poisonous request ends if no fault helps it. Two exits beside
# others and two alone count. Some do not: a scheduler that gets a worker back before it hears that the choice has moved
# computes it once more.
_EXITS_OF_CHOICE = 8
# Time between two checks of every core's invariants while faults strike.
_CHECK_EVERY_S = 0.25


@dataclass(slots=True)
class Outcome:
    seed: int
    violation: str | None = None
    faults: dict[str, int] = field(default_factory=dict)
    # Number of faults that struck while a request was open.
    num_under_load: int = 0
    num_requests: int = 0
    num_errors: int = 0
    # Requests that failed because workers exited while they worked on them.
    num_blamed: int = 0
    virtual_seconds: float = 0.0
    num_callbacks: int = 0
    # Seconds of processor time that the run took.
    cpu_seconds: float = 0.0

    @property
    def num_faults(self) -> int:
        return num_faults_in(self.faults)


def draw_setting(rng: random.Random) -> Setting:
    return Setting(
        num_routers=rng.choice((1, 2, 2)),
        num_schedulers=rng.choice((1, 2, 2, 2)),
        num_workers=rng.choice((1, 2, 2, 3)),
        num_blocks=rng.choice((48, 48, 64, 256)),
        max_num_seqs=rng.choice((4, 8, 16)),
        max_num_batched_tokens=rng.choice((16, 64)),
        step_seconds=rng.choice((0.002, 0.01, 0.01, 0.03)),
        run_ahead=rng.choice((None, 1, 2, 3)),
        step_timeout=rng.choice((1.0, 4.0)),
        num_host_blocks=rng.choice((0, 0, 16)),
    )


class Simulation:
    def __init__(self, seed: int, trace: Callable[[str], None] | None = None, numbers: Numbers = DRAWN) -> None:
        self.world = World(seed)
        self._numbers = numbers
        self.world.trace = trace
        rng = self.world.random
        self.setting = setting = draw_setting(rng)
        self.network = Network(self.world, window=rng.choice((4, 32, 1000)))
        common = (self.world, self.network, setting)
        # A worker serves one scheduler, so each scheduler gets workers of its own, and now and then one in common.
        num_workers = max(setting.num_workers, setting.num_schedulers)
        self.workers = [WorkerPart(f"w{index}", *common) for index in range(num_workers)]
        self.schedulers = [SchedulerPart(f"s{index}", *common) for index in range(setting.num_schedulers)]
        is_common = rng.random() < 0.5
        for index, scheduler in enumerate(self.schedulers):
            own = self.workers if is_common else self.workers[index :: setting.num_schedulers]
            # Each begins with another worker.
            turn = index % len(own)
            scheduler.view = View(Kind.WORKER, [worker.name for worker in (*own[turn:], *own[:turn])])
        self.routers = [RouterPart(f"r{index}", *common) for index in range(setting.num_routers)]
        for router in self.routers:
            router.view = View(Kind.SCHEDULER, [scheduler.name for scheduler in self.schedulers])
        self.parts: list[Part] = [*self.workers, *self.schedulers, *self.routers]
        self.clients: list[Client] = []
        self.nemesis = Nemesis(self.world, self.network, self.parts, self._router_died, self.clients)
        requests = draw_requests(rng, NUM_REQUESTS, self.world.now, numbers.late)
        rng_of_poison = random.Random(f"poison of {seed}")
        num_poisons = rng_of_poison.choice((0, 0, 0, 1, 1, 2)) if numbers.poisons is None else numbers.poisons
        requests = poison(requests, rng_of_poison, num_poisons)
        self.clients += [Client(self.world, request) for request in requests]
        self._num_open = 0

    def run(self) -> None:
        """Raises Violation if the fleet breaks a promise."""
        world = self.world
        start = world.now
        world.say(f"{self.setting}")
        for part in self.parts:
            part.start()
        for client in self.clients:
            world.call_at(client.request.arrives_at, partial(client.send, self.routers))
        self.nemesis.plan(self._numbers, start + 0.02, start + _FAULTS_UNTIL_S)
        self._check_cores(start + _FAULTS_UNTIL_S)
        # Faults come until then, even if all requests have ended.
        world.run(lambda: False, start + _FAULTS_UNTIL_S)
        is_done = world.run(self._is_done, start + _ALL_FAULTS_END_S)
        self._raise_problems()
        self.nemesis.stop()
        if not is_done and not world.run(self._is_done, world.now + _LIMIT_S):
            self._raise_problems()
            names = [client.request.name for client in self.clients if not client.is_done]
            raise Violation(f"requests never ended: {names}")
        world.run(lambda: False, world.now + _IDLE_S)
        self._check_idle()
        if self.nemesis.tampered:
            world.run(self._has_no_plans, world.now + _LOST_RESULT_S)
        world.run(lambda: False, world.now + _SETTLE_S)
        self._raise_problems()
        self._check_errors()
        self._check_nothing_is_left()

    def _is_done(self) -> bool:
        return bool(self.world.problems) or all(client.is_done for client in self.clients)

    def _router_died(self, router: RouterPart) -> None:
        for client in self.clients:
            client.router_died(router, self.routers)

    def _raise_problems(self) -> None:
        if self.world.problems:
            raise Violation("; ".join(self.world.problems[:3]))
        if self.network.refusals and not self.nemesis.tampered:
            raise Violation(f"a peer broke the protocol: {self.network.refusals[0]}")

    def _check_errors(self) -> None:
        """A request is to blame only for exits of workers that computed nothing else."""
        for client in self.clients:
            request = client.request
            num_exits = self.nemesis.exits.num_for(request.prompt)
            if client.is_blamed and num_exits < 2 and not self.nemesis.tampered:
                raise Violation(f"{request.name} was blamed for two exits of workers, but there were {num_exits}")
            if request.is_poisonous:
                self._check_poison(client)

    def _check_poison(self, client: Client) -> None:
        """The number of workers that a poisonous request ends is bounded. A fault can make a router or scheduler forget
        one of them. A client that sends its request to another router begins anew."""
        request = client.request
        if client.error is None:
            raise Violation(f"{request.name} ends its workers, and was not refused")
        number, num_faults = self.nemesis.num_poisoned[request.prompt], self.nemesis.num_faults
        if number > (most := client.num_tries * _EXITS_OF_CHOICE * request.n + num_faults):
            raise Violation(f"{request.name} has ended {number} workers, more than {most}")

    def _check_cores(self, until: float) -> None:
        for scheduler in self.schedulers:
            if scheduler.is_alive and hasattr(scheduler, "fleet"):
                for group in scheduler.fleet.groups:
                    if group.core is not None:
                        group.core.check_integrity()
        if self.world.now < until:
            self.world.call_later(_CHECK_EVERY_S, lambda: self._check_cores(until))

    def _check_idle(self) -> None:
        """Nobody waits for an answer, so schedulers have nothing to do."""
        for scheduler in self.schedulers:
            if num_left := sum(group.num_unfinished for group in scheduler.fleet.groups):
                raise Violation(f"{scheduler.host.name} works on {num_left} sequences for nobody")

    def _has_no_plans(self) -> bool:
        groups = [group for scheduler in self.schedulers for group in scheduler.fleet.groups]
        return not any(group.core.num_in_flight for group in groups if group.core is not None)

    def _check_nothing_is_left(self) -> None:
        for scheduler in self.schedulers:
            name = scheduler.host.name
            for group in scheduler.fleet.groups:
                core = group.core
                if core is None:
                    continue
                core.check_integrity()
                if core.num_running or core.num_waiting or core.num_in_flight:
                    left = f"{core.num_running} running, {core.num_waiting} waiting, {core.num_in_flight} plans"
                    raise Violation(f"{name} is left with {left} for {group.address}")
                if core.memory.pool.num_used or core.num_outstanding_tokens:
                    raise Violation(f"{name} is left with {core.memory.pool.num_used} blocks in use")
            if not scheduler.servicer.is_idle:
                raise Violation(f"{name} is left with sequences of a router")
            self._check_tasks(scheduler, 5 + 3 * len(scheduler.view.addresses) + 4 * len(self.routers))
        for router in self.routers:
            placement = router.placement
            if placement.num_parked or any(connection.num_sequences for connection in placement.connections):
                raise Violation(f"{router.host.name} is left with sequences")
            if len(placement.connections) != len(router.view.addresses) or not placement.is_ready:
                raise Violation(f"{router.host.name} is not connected to its schedulers")
            self._check_tasks(router, 3 + 5 * len(router.view.addresses))
        for worker in self.workers:
            if worker.worker.ownership.owner is None:
                raise Violation(f"no scheduler has claimed {worker.host.name}")
            self._check_tasks(worker, 1 + 2 * len(self.schedulers))

    @staticmethod
    def _check_tasks(part: Part, most: int) -> None:
        if part.host.loop.num_tasks > most:
            names = part.host.loop.task_names()
            raise Violation(f"{part.host.name} is left with {len(names)} tasks: {', '.join(names)}")


def run_seed(
    seed: int,
    trace: Callable[[str], None] | None = None,
    numbers: Numbers = DRAWN,
) -> Outcome:
    """Runs one seed to its end. Equal seeds give equal runs."""
    outcome = Outcome(seed)
    simulation = Simulation(seed, trace, numbers)
    world = simulation.world
    with clock.replaced_by(world.time):
        try:
            simulation.run()
        except AssertionError as error:
            outcome.violation = f"{type(error).__name__}: {error}"
        outcome.faults = simulation.nemesis.counts
        outcome.num_under_load = simulation.nemesis.num_under_load
        outcome.num_requests = len(simulation.clients)
        outcome.num_errors = sum(client.error is not None for client in simulation.clients)
        outcome.num_blamed = sum(client.is_blamed for client in simulation.clients)
        outcome.virtual_seconds = world.now - 1000.0
        outcome.num_callbacks = world.num_callbacks
        level = logging.root.manager.disable
        logging.disable()  # what processes say while they are ended means nothing
        world.end()
        logging.disable(level)
    return outcome
