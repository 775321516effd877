"""Runs the traffic and the abuse at the same time, and measures the parts at quiet points."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from benchmarks.abuse.attack import Row, Target
from benchmarks.abuse.memory import resident
from benchmarks.abuse.run import limited
from benchmarks.abuse.stack import RunningStack
from benchmarks.soak.figures import Figures, Identity, Load, Point, figures, identities, load
from benchmarks.soak.mix import embeds, for_children, mixed
from benchmarks.soak.request import BusyError, Request, Wire, WrongAnswerError, wired
from benchmarks.soak.tally import Tally

# Seconds after which a request or row without an answer fails. A working server never takes nearly as long.
ANSWER_LIMIT_S = 300.0
# Seconds to wait for the scheduler to end the sequences of disconnected clients.
IDLE_LIMIT_S = 300.0
SAMPLE_S = 5.0
PROGRESS_S = 60.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """A period of traffic before a quiet point. It ends when `seconds` have passed, `rows` rows were sent, and each
    client has sent `requests` requests."""

    seconds: float = 0.0
    requests: int = 0
    rows: int = 0


class Turns:
    """Decides which senders may continue in a stretch. The stretch begins when this object is created."""

    def __init__(self, stretch: Stretch) -> None:
        self._stretch = stretch
        self._end = time.monotonic() + stretch.seconds
        self._rows_end = asyncio.Event()

    def of_abuse(self) -> Iterator[None]:
        count = 0
        while time.monotonic() < self._end or count < self._stretch.rows:
            yield
            count += 1
        self._rows_end.set()

    def of_client(self) -> Iterator[None]:
        """Continues at least as long as the abuse, so that every attack meets other traffic."""
        count = 0
        while time.monotonic() < self._end or count < self._stretch.requests or not self._rows_end.is_set():
            yield
            count += 1


@dataclass(frozen=True, slots=True)
class Plan:
    # The first stretch is the warm-up. Each stretch ends with a quiet point.
    stretches: Sequence[Stretch]
    rows: Sequence[Row]
    clients: int = 8
    seed: int = 1
    # Seconds between two rows.
    pause_s: float = 3.0
    # Seconds of a quiet point before the measurement, in which the last connections close.
    rest_s: float = 10.0


@dataclass(slots=True)
class Soak:
    """A run of the soak test, with its results so far."""

    stack: RunningStack
    plan: Plan
    tally: Tally = field(default_factory=Tally)
    # One quiet point for each stretch.
    points: list[Point] = field(default_factory=list)
    # Maximum of each figure over all samples, by part.
    peaks: dict[str, Figures] = field(default_factory=dict)
    # Whether every row was sent before the first point.
    is_warm: bool = False
    # All processes seen in samples.
    processes: set[Identity] = field(default_factory=set)

    async def run(self) -> None:
        start = time.monotonic()
        plan, target = self.plan, self.stack.target
        does_embed = await _embeds(target)
        traffic = [mixed(f"{plan.seed} {number}", does_embed) for number in range(plan.clients)]
        rows = _again_and_again(plan.rows, random.Random(plan.seed))
        sampling = asyncio.create_task(self._sample(start))
        try:
            await self._begin_children()
            for stretch in plan.stretches:
                turns = Turns(stretch)
                await asyncio.gather(*(self._ask(one, turns) for one in traffic), self._abuse(rows, turns))
                self.points.append(await self._quiet_point(start))
                if len(self.points) == 1:
                    self.is_warm = all(row.name in self.tally.sent for row in plan.rows)
                self._show("quiet", self.points[-1].seconds, self.points[-1].parts)
        finally:
            sampling.cancel()
        self.processes |= identities(self.stack.processes.values())

    async def _ask(self, requests: Iterator[Request], turns: Turns) -> None:
        """Runs one client, which sends one request after another."""
        async with wired(self.stack.target.host, self.stack.target.port) as wire:
            for _ in turns.of_client():
                await self._counted(wire, next(requests))

    async def _begin_children(self) -> None:
        """Makes the router start all of its child processes, which it starts on demand. A child that starts after the
        first quiet point would count as growth."""
        async with wired(self.stack.target.host, self.stack.target.port) as wire:
            await asyncio.gather(*(self._counted(wire, request) for request in for_children()))

    async def _counted(self, wire: Wire, request: Request) -> None:
        """Sends a request, and counts the answer or the fault."""
        try:
            said = await self._answered(wire, request)
        except WrongAnswerError as error:
            self.tally.fault(request.name, str(error))
        except TimeoutError:
            self.tally.fault(request.name, f"no answer within {ANSWER_LIMIT_S:.0f} s")
        except (OSError, aiohttp.ClientError) as error:
            self.tally.fault(request.name, f"{type(error).__name__}: {error}")
            # If a part has died, each further request fails immediately: do not flood the tally.
            await asyncio.sleep(1)
        else:
            self.tally.answer(request.name, request.key, said)

    async def _answered(self, wire: Wire, request: Request) -> str:
        """Sends a request, and retries it after the delay that the server requests, for as long as the server is
        busy."""
        while True:
            try:
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    return await request.send(wire)
            except BusyError as busy:
                self.tally.num_busy += 1
                await asyncio.sleep(busy.seconds)

    async def _abuse(self, rows: Iterator[Row], turns: Turns) -> None:
        for _ in turns.of_abuse():
            row = next(rows)
            self.tally.sent.add(row.name)
            attack = await asyncio.to_thread(row.make)
            answer = await limited(attack, self.stack.target, ANSWER_LIMIT_S)
            if (fault := row.fault(answer)) is None:
                self.tally.rows[row.name] += 1
            else:
                self.tally.fault(row.name, fault)
            await asyncio.sleep(self.plan.pause_s)

    async def _quiet_point(self, start: float) -> Point:
        found = await self._idle_load()
        await asyncio.sleep(self.plan.rest_s)
        parts = {part: figures(pid) for part, pid in self.stack.processes.items()}
        return Point(time.monotonic() - start, self.tally.num_requests, parts, found)

    async def _idle_load(self) -> Load:
        """Waits until the scheduler is idle, for at most IDLE_LIMIT_S, and returns its load. Returns an empty load if
        the scheduler has ended, which is a fault by itself."""
        found = Load(0, 0, 0, 0)
        for _ in range(int(IDLE_LIMIT_S / 0.2)):
            if not resident(self.stack.processes["scheduler"]):
                break
            found = await load(self.stack.target.scheduler)
            if found.is_idle:
                break
            await asyncio.sleep(0.2)
        return found

    async def _sample(self, start: float) -> None:
        next_line = PROGRESS_S
        while True:
            parts = {part: figures(pid) for part, pid in self.stack.processes.items()}
            self.peaks = {part: _most(self.peaks.get(part, found), found) for part, found in parts.items()}
            self.processes |= identities(self.stack.processes.values())
            if (seconds := time.monotonic() - start) >= next_line:
                self._show("traffic", seconds, parts)
                next_line += PROGRESS_S
            await asyncio.sleep(SAMPLE_S)

    def _show(self, state: str, seconds: float, parts: Mapping[str, Figures]) -> None:
        """Prints a line of progress."""
        held = ", ".join(
            f"{part} {found.resident_bytes / 1e6:.0f} MB {found.descriptors} fds" for part, found in parts.items()
        )
        tally = self.tally
        counts = f"{tally.answered.total()} answers, {tally.rows.total()} rows, {tally.faults.total()} faults"
        print(f"{seconds:5.0f} s {state:7} {counts}; {held}", flush=True)


async def _embeds(target: Target) -> bool:
    """Returns whether the model has embeddings."""
    async with wired(target.host, target.port) as wire, wire.session.get(f"{wire.url}/v1/models") as response:
        return embeds(await response.read())


def _again_and_again(rows: Sequence[Row], chance: random.Random) -> Iterator[Row]:
    """Yields all rows in random order, repeatedly."""
    while rows:
        yield from chance.sample(rows, len(rows))


def _most(one: Figures, other: Figures) -> Figures:
    return Figures(
        max(one.resident_bytes, other.resident_bytes),
        max(one.descriptors, other.descriptors),
        max(one.sockets, other.sockets),
        max(one.threads, other.threads),
        max(one.processes, other.processes),
    )
