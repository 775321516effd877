"""The schedulers of a router: follows discovery, and owns a connection to each scheduler."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from services.router.dispatch.scheduler_connection import ConnectionOwner, SchedulerConnection
from shared.discovery import Parts, Source, follow
from shared.transport import Connect, GrpcChannel

logger = logging.getLogger(__name__)


class Roster:
    """Keeps a connection to every scheduler that the source knows. Discovery adds, and streams remove: a scheduler that
    is missing from the source stays in use while its stream is connected. So no state of the source can take away a
    scheduler that works. A scheduler that comes back at the same address gets a new stream on the same connection."""

    def __init__(
        self,
        source: Source,
        router_id: str,
        owner: ConnectionOwner,
        silence_seconds: float,
        connect: Connect = GrpcChannel,
        jitter: random.Random | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`silence_seconds`: time without a message after which a scheduler's stream is dropped. `jitter`: spreads the
        times at which routers reconnect. `on_change`: called when the source has told its schedulers."""
        self._source = source
        self._router_id = router_id
        self._owner = owner
        self._silence_seconds = silence_seconds
        self._connect = connect
        self._jitter = jitter
        self._on_change = on_change
        self._known: frozenset[str] = frozenset()
        # Whether there may be schedulers that the source has not found yet.
        self.is_stale = True
        self._connections: dict[str, SchedulerConnection] = {}
        self._runs: dict[SchedulerConnection, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None

    @property
    def connections(self) -> list[SchedulerConnection]:
        """Connections to all schedulers in use, and to those that the router tries to reach, oldest first."""
        return list(self._connections.values())

    @property
    def num_stale(self) -> int:
        """Number of schedulers in use that are missing from the source."""
        return len(self._connections.keys() - self._known)

    def start(self) -> None:
        """Starts to follow the source; returns at once."""
        self._following = asyncio.create_task(follow(self._source, self._apply))

    async def stop(self) -> None:
        """Closes all connections."""
        tasks = list(self._runs.values())
        if self._following is not None:
            tasks.append(self._following)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def lost(self, connection: SchedulerConnection) -> None:
        """Takes note that a stream has ended. Removes its scheduler if the source does not know the scheduler."""
        if connection.address not in self._known:
            self._remove(connection)

    def _apply(self, parts: Parts) -> None:
        self._known, self.is_stale = parts.addresses, parts.is_stale
        for address in parts.by_address:
            if address not in self._connections:
                self._add(address)
        for connection in self.connections:
            if connection.address not in self._known and not connection.is_ready:
                self._remove(connection)
        self._on_change()

    def _add(self, address: str) -> None:
        connection = SchedulerConnection(
            address, self._router_id, self._owner, self._silence_seconds, self._connect, self._jitter
        )
        self._connections[address] = connection
        run = self._runs[connection] = asyncio.create_task(connection.run())
        run.add_done_callback(lambda _: self._runs.pop(connection, None))

    def _remove(self, connection: SchedulerConnection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            logger.info("forgot scheduler %s: discovery does not know it any more", connection.address)
        run = self._runs.get(connection)
        # While `stop` cancels the run, a second cancellation would interrupt the closing of its channel.
        if run is not None and not run.cancelling():
            run.cancel()
