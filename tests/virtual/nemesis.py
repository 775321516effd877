"""The faults of one seed, drawn from its random numbers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from quire.scheduler.v1 import scheduler_pb2
from quire.worker.v1 import worker_pb2
from tests.virtual.clients import Client
from tests.virtual.exits import Exits, Prompt
from tests.virtual.loop import World
from tests.virtual.network import PING_S, Host, Network, Stream
from tests.virtual.parts import Part, RouterPart, SchedulerPart, WorkerPart

MIN_FAULTS = 3
# Seconds after which a fault that found the fleet idle tries again.
_TRY_AGAIN_S = 0.01
MAX_FAULTS = 8
# Most faults are short. Some outlast gRPC's pings.
_SHORT_S = 1.5
_LONG_S = PING_S + 4.0
# Within this time, a process applies a change of discovery, and other events are unlikely.
_AT_ONCE_S = 0.0002


@dataclass(frozen=True, slots=True)
class Numbers:
    """How many faults, drains, losses of discovery, hunts and poisonous requests a run has, and how many of its
    requests come late, while faults strike. The seed draws what is None."""

    faults: int | None = None
    drains: int | None = None
    hides: int | None = None
    hunts: int | None = None
    poisons: int | None = None
    late: int = 6


DRAWN = Numbers()


def num_faults_in(counts: Mapping[str, int]) -> int:
    """What discovery hides is no fault, because it must not end a stream."""
    return sum(count for name, count in counts.items() if name not in ("nothing", "hide"))


class Nemesis:
    def __init__(
        self,
        world: World,
        network: Network,
        parts: Sequence[Part],
        on_router_death: Callable[[RouterPart], None],
        clients: Sequence[Client],
    ) -> None:
        """`clients`: may get its elements later."""
        self._clients = clients
        self._world = world
        self._network = network
        self._parts = parts
        self._on_router_death = on_router_death
        self._rng = random.Random(world.random.random())
        # Drains, discovery, hunts, exits by poison and substitutes have random numbers of their own: kinds and times of
        # a seed's other faults do not depend on them.
        self._rng_of_drains = random.Random(f"drains of {world.seed}")
        self._rng_of_discovery = random.Random(f"discovery of {world.seed}")
        self._rng_of_hunts = random.Random(f"hunts of {world.seed}")
        self._rng_of_exits = random.Random(f"exits of {world.seed}")
        self._rng_of_substitutes = random.Random(f"substitutes of {world.seed}")
        # Number of faults so far, by kind. "nothing": there was nothing to act on.
        self.counts: dict[str, int] = {}
        # Number of those that struck while a request was open.
        self.num_under_load = 0
        self.tampered = False
        # Streams with a message that was lost, doubled or swapped: their parts may end them for that.
        self._tampered_streams: list[Stream] = []
        self.exits = Exits()
        # Number of processes that each poisonous prompt has ended.
        self.num_poisoned: Counter[Prompt] = Counter()
        self._zombies: list[Part] = []
        # Processes that were told to end.
        self._leaving: set[Host] = set()
        self.is_over = False
        for part in parts:
            if isinstance(part, WorkerPart):
                part.end_poisoned = self._poison
            elif isinstance(part, SchedulerPart):
                part.exits = self.exits

    @property
    def num_faults(self) -> int:
        return num_faults_in(self.counts)

    def plan(self, numbers: Numbers, start: float, end: float) -> None:
        """Plans everything at random times."""
        faults = [self._kill, self._kill, self._pause, self._cut, self._cut, self._block, self._slow, self._replace,
                  self._tamper]  # fmt: skip
        number = self._world.random.randint(MIN_FAULTS, MAX_FAULTS) if numbers.faults is None else numbers.faults
        for _ in range(number):
            fault = self._rng.choice(faults)
            self._world.call_at(self._rng.uniform(start, end), partial(self._strike, partial(self._some_fault, fault)))
        rng = self._rng_of_drains
        for _ in range(rng.choice((0, 0, 1, 1, 2)) if numbers.drains is None else numbers.drains):
            self._world.call_at(rng.uniform(start, end), partial(self._strike, self._drain))
        rng = self._rng_of_discovery
        for _ in range(rng.choice((0, 0, 1, 2, 3)) if numbers.hides is None else numbers.hides):
            if rng.random() < 0.25:
                self._count(self._hide())  # from processes that start
            else:
                self._world.call_at(rng.uniform(start, end), partial(self._strike, self._hide))
        rng = self._rng_of_hunts
        for _ in range(rng.choice((0, 0, 0, 1)) if numbers.hunts is None else numbers.hunts):
            self._world.call_at(rng.uniform(start, end), partial(self._hunt, end))

    def stop(self) -> None:
        """Ends every fault. Processes that were replaced or told to end are killed. Then every part runs, started again
        if necessary."""
        self.is_over = True
        for zombie in self._zombies:
            self._end(zombie)
        for part in self._parts:
            if part.is_alive and part.host in self._leaving:
                self._end(part)
            elif part.is_alive:
                part.host.loop.resume()
        self._network.heal()
        for part in self._parts:
            if isinstance(part, RouterPart | SchedulerPart):
                part.view.show_all()
        for part in self._parts:
            if not part.is_alive:
                part.start()

    def _strike(self, fault: Callable[[], str]) -> None:
        """The first faults of a run wait until a request is open, because they would show little in an idle fleet."""
        if self.is_over:
            return
        waiting = [client for client in self._clients if not client.is_done]
        is_busy = any(client.num_tries for client in waiting)
        if waiting and not is_busy and self.num_under_load < MIN_FAULTS:
            self._world.call_later(_TRY_AGAIN_S, partial(self._strike, fault))
            return
        name = fault()
        self._count(name)
        self.num_under_load += is_busy and num_faults_in({name: 1})

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _some_fault(self, fault: Callable[[], str]) -> str:
        """Carries out this fault, or a pause if it has nothing to act on."""
        name = fault()
        alive = self._alive()
        if name != "nothing" or not alive:
            return name
        rng = self._rng_of_substitutes
        return self._pause_for(rng.choice(alive), rng.uniform(0.01, _SHORT_S))

    def _seconds(self) -> float:
        return self._rng.uniform(1.0, _LONG_S) if self._rng.random() < 0.12 else self._rng.uniform(0.01, _SHORT_S)

    def _alive(self) -> list[Part]:
        return [part for part in self._parts if part.is_alive]

    def _end(self, part: Part) -> None:
        if part.is_alive:
            part.kill(self._rng.choice((0.001, 0.05, PING_S)))
            if isinstance(part, RouterPart):
                self._on_router_death(part)

    def _poison(self, host: Host, prompt: Prompt) -> None:
        """A poisonous request ends the process. Another one takes its place soon."""
        rng = self._rng_of_exits
        (part,) = (part for part in (*self._parts, *self._zombies) if part.host is host)
        self.num_poisoned[prompt] += 1
        self._world.say(f"{host.name} is poisoned")
        part.kill(rng.choice((0.001, 0.05)))
        if part in self._parts:
            self._world.call_later(rng.uniform(0.01, _SHORT_S), lambda: None if part.is_alive else part.start())

    def _kill(self) -> str:
        alive = self._alive()
        if not alive:
            return "nothing"
        part = self._rng.choice(alive)
        self._end(part)
        self._world.call_later(self._seconds(), lambda: self._start(part))
        return "kill"

    def _drain(self) -> str:
        """SIGTERM, as a rolling restart sends it."""
        rng = self._rng_of_drains
        parts = [part for part in self._alive() if part.host.has_begun and part.host not in self._leaving]
        if not parts:
            return "nothing"
        part = rng.choice(parts)
        pause = rng.uniform(0.01, _SHORT_S)
        self._leaving.add(part.host)

        def ended() -> None:
            if isinstance(part, RouterPart):
                self._on_router_death(part)
            self._world.call_later(pause, lambda: self._start(part))

        part.stop(rng.choice((0.05, 0.5, 4.0)), ended)
        return "drain"

    def _hunt(self, end: float) -> None:
        """Cuts the stream of a worker that computes one request alone, and later ends another worker that does. Only
        the second one is an exit."""
        if (found := self._alone(lambda _: True)) is None:
            self._again(partial(self._hunt, end), end)
            return
        rng, (stream, prey) = self._rng_of_hunts, found
        self._world.say(f"the stream from {stream.client.name} to {stream.server.name} is cut; its request is hunted")
        self._network.cut(stream, rng.choice((0.0, 0.01)), rng.choice((0.0, 0.01, 0.5)))
        self._count("cut")
        self._world.call_later(rng.choice((0.0, 0.1, 1.0)), partial(self._catch, prey, end))

    def _catch(self, prey: Prompt, end: float) -> None:
        found = self._alone(lambda prompt: prompt == prey)
        part = found and next((part for part in self._alive() if part.host is found[0].server), None)
        if not part:
            self._again(partial(self._catch, prey, end), end)
            return
        self._world.say(f"{part.host.name} computes the hunted request")
        part.kill(0.001)
        self._count("hunt")
        self._world.call_later(self._rng_of_hunts.uniform(0.01, _SHORT_S), lambda: self._start(part))

    def _alone(self, is_wanted: Callable[[Prompt], bool]) -> tuple[Stream, Prompt] | None:
        """A request that a worker computes alone, and the stream to that worker."""
        found = [(stream, prompt) for stream, prompt in self.exits.alone().items() if is_wanted(prompt)]
        return self._rng_of_hunts.choice(found) if found else None

    def _again(self, hunt: Callable[[], None], end: float) -> None:
        if not self.is_over and self._world.now < end:
            self._world.call_later(_TRY_AGAIN_S, hunt)

    def _hide(self) -> str:
        """Discovery loses parts for one of those that ask it: it has lost its data, or cannot be asked."""
        rng = self._rng_of_discovery
        part = rng.choice([part for part in self._parts if isinstance(part, RouterPart | SchedulerPart)])
        view = part.view
        hidden = view.addresses if rng.random() < 0.6 else (rng.choice(view.addresses),)
        is_stale = rng.random() < 0.3
        self._world.say(f"discovery {'cannot be asked for' if is_stale else 'does not know'} {', '.join(hidden)}")
        in_use = part.peers_in_use
        streams = [
            stream
            for stream in self._network.streams
            if stream.client is part.host and stream.address in in_use and stream.is_whole
        ]
        view.hide(hidden, is_stale)
        self._world.call_later(_AT_ONCE_S, partial(self._check_streams, part.host, streams))
        self._world.call_later(rng.uniform(0.01, _SHORT_S), view.show_all)
        return "hide"

    def _check_streams(self, host: Host, streams: Sequence[Stream]) -> None:
        """Discovery adds, and streams remove: a peer stays in use, whatever discovery says."""
        given_up = [
            stream.address for stream in streams if stream.is_cancelled and stream not in self._tampered_streams
        ]
        if given_up and host not in self._leaving:
            self._world.problems.append(f"{host.name} gave up {', '.join(given_up)}, which discovery has lost")

    def _start(self, part: Part) -> None:
        if not part.is_alive and not self.is_over:
            part.start()

    def _pause(self) -> str:
        part = self._rng.choice(self._parts)
        return self._pause_for(part, self._seconds())

    def _pause_for(self, part: Part, seconds: float) -> str:
        host = part.host
        self._world.say(f"{host.name} is paused for {seconds:.3f} s")
        host.loop.pause()
        self._network.silent(host)
        self._world.call_later(seconds, lambda: self._resume(part))
        return "pause"

    def _resume(self, part: Part) -> None:
        self._world.say(f"{part.host.name} continues")
        part.host.loop.resume()

    def _cut(self) -> str:
        streams = self._network.streams
        if not streams:
            return "nothing"
        stream = self._rng.choice(streams)
        ends = (self._delay_of_news(), self._delay_of_news())
        self._world.say(f"the stream from {stream.client.name} to {stream.server.name} is cut")
        self._network.cut(stream, *ends)
        return "cut"

    def _delay_of_news(self) -> float:
        return self._rng.choice((0.0, 0.01, 0.5, 0.5, PING_S))

    def _pair(self) -> tuple[Part, Part]:
        one = self._rng.choice(self._parts)
        other = self._rng.choice([part for part in self._parts if type(part) is not type(one)])
        return one, other

    def _block(self) -> str:
        one, other = self._pair()
        seconds = self._seconds()
        is_both = self._rng.random() < 0.4
        self._world.say(f"{one.host.name} {'<' if is_both else ''}-> {other.host.name} is blocked for {seconds:.3f} s")
        self._network.block(one.host, other.host, seconds)
        if is_both:
            self._network.block(other.host, one.host, seconds)
        return "block"

    def _slow(self) -> str:
        one, other = self._pair()
        pair = (one.host, other.host)
        self._network.slow[pair] = self._rng.choice((0.02, 0.2, 1.0))
        self._world.say(f"{one.host.name} -> {other.host.name} is slow")

        def end() -> None:
            self._network.slow.pop(pair, None)

        self._world.call_later(self._seconds(), end)
        return "slow"

    def _replace(self) -> str:
        """A host is given up and its part started elsewhere under the same address. The old process was only paused,
        and comes back with all its streams."""
        part = self._rng.choice([part for part in self._parts if not isinstance(part, RouterPart)])
        if not part.is_alive:
            return "nothing"
        zombie = type(part)(part.name, part.world, part.network, part.setting)
        zombie.host = part.host
        self._zombies.append(zombie)
        self._world.say(f"{part.host.name} is replaced, and stays behind")
        zombie.host.loop.pause()
        self._network.silent(zombie.host)
        part.start()
        self._world.call_later(self._seconds(), lambda: self._resume(zombie))
        self._world.call_later(_LONG_S + 4.0, lambda: self._end(zombie))
        return "stale"

    def _tamper(self) -> str:
        """One message of a kind that has its own protection is lost, doubled, or changes places with the next."""
        kind = self._rng.choice(("lost", "doubled", "swapped"))
        wanted = self._rng.choice(("frame", "plan", "result"))
        held: list[tuple[Stream, str, Any]] = []
        is_done = False

        def tamper(stream: Stream, sender: str, message: Any) -> list[Any]:
            nonlocal is_done
            if held and held[0][0] is stream and held[0][1] == sender:
                _, _, first = held.pop()
                self._network.tamper = None
                return [message, first]
            if is_done or message.WhichOneof("message") != wanted or not _is_protected(message):
                return [message]
            is_done = True
            self.tampered = True
            self._tampered_streams.append(stream)
            self._world.say(f"a {wanted} on the stream of {sender} is {kind}")
            if kind == "swapped":
                held.append((stream, sender, message))
                return []
            self._network.tamper = None
            return [] if kind == "lost" else [message, message]

        if self._network.tamper is not None:
            return "nothing"
        self._network.tamper = tamper
        return "tamper"


def _is_protected(message: Any) -> bool:
    """Whether the receiver can find out that this message is lost or late."""
    if isinstance(message, scheduler_pb2.ConnectResponse):
        return bool(message.frame.token_ids) and not message.frame.finished
    return isinstance(message, worker_pb2.RunRequest | worker_pb2.RunResponse)
