"""A running fleet with its clients and its recorder: what every scenario needs."""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from quire.cli.runtime_directory import runtime_directory
from tests.chaos import leaks
from tests.chaos.catalog import Request, catalog
from tests.chaos.fleet import Fleet, Shape, runtime_of
from tests.chaos.history import Recorder
from tests.chaos.load import Load
from tests.chaos.machine_limits import small_disk

# Name of the directories with a run's sockets and logs. Short, because paths of sockets are limited.
_PREFIX = "chaos-"


@dataclass(slots=True)
class Stage:
    """`clock`: returns the seconds since the start, as in the history. `show`: prints a line of progress."""

    fleet: Fleet
    load: Load
    recorder: Recorder
    requests: Sequence[Request]
    clock: Callable[[], float]
    show: Callable[[str], None]
    # Descriptions of what is left over, complete when the stage is closed.
    leaks: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.show(f"{self.clock():5.0f} s {text}")

    async def send_each(self, times: int, at_once: int) -> None:
        """Sends each request several times. `at_once`: number of requests in progress at a time."""
        turns = [request for _ in range(times) for request in self.requests]
        random.Random(times).shuffle(turns)
        places = asyncio.Semaphore(at_once)

        async def send(request: Request) -> None:
            async with places:
                await self.load.send(request)

        await asyncio.gather(*map(send, turns))


def catalog_of(shape: Shape) -> tuple[Request, ...]:
    """Returns all requests for all models of a fleet."""
    return tuple(request for group in shape.groups for request in catalog(group.model))


@asynccontextmanager
async def staged(
    shape: Shape,
    history: Path,
    show: Callable[[str], None],
    requests: Sequence[Request] | None = None,
    left_out: Iterable[str] = (),
) -> AsyncIterator[Stage]:
    """Runs a fleet until the block ends, then stops it and looks for processes that are left. Writes the history to a
    file. `requests`: those that clients send; default: the catalog. `left_out`: parts that are not started."""
    begin = time.monotonic()

    def clock() -> float:
        return time.monotonic() - begin

    with (
        runtime_directory(_PREFIX, Path(tempfile.gettempdir())) as directory,
        small_disk(runtime_of(directory)) as is_small,
        Recorder(history) as recorder,
    ):
        fleet = Fleet(shape, directory, clock, recorder.add, has_small_disk=is_small)
        load = Load(fleet.host, fleet.ports, clock, recorder.add)
        stage = Stage(fleet, load, recorder, requests or catalog_of(shape), clock, show)
        task = asyncio.current_task()
        assert task is not None
        # SIGTERM ends a run as Ctrl-C does: no part and no file is left.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            await fleet.start(*left_out)
            stage.say("the fleet is up")
            yield stage
        finally:
            await load.close()
            await fleet.stop()
            for served in fleet.served():
                recorder.add(served)
        stage.leaks += await leaks.left(fleet.processes)
