"""One direction of a stream in virtual time: what has been sent and has not arrived, and what waits to be read."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from tests.virtual.network import Host, Stream


@dataclass(frozen=True, slots=True)
class End:
    """The status with which a server ended a stream."""

    code: grpc.StatusCode
    details: str


@dataclass(frozen=True, slots=True)
class Open:
    pass


@dataclass(frozen=True, slots=True)
class Cancel:
    pass


class Pipe:
    """One direction of a stream."""

    def __init__(self, stream: Stream, source: Host, target: Host, to_server: bool) -> None:
        self._stream = stream
        self._network = stream.network
        self.source = source
        self.target = target
        self._to_server = to_server
        self._arrives = 0.0
        self._held: deque[Any] = deque()
        self._window = stream.network.window
        self.inbox: deque[Any] = deque()
        self.num_under_way = 0
        # After a cut: number of messages that still arrive.
        self.num_left: int | None = None
        self.reader: asyncio.Future[None] | None = None
        self.writer: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        return self.num_under_way + len(self.inbox) >= self._window

    def send(self, item: Any) -> None:
        if self._stream.is_cut:
            self.num_under_way += 1  # it fills the window, and vanishes
            return
        self.num_under_way += 1
        network = self._network
        self._arrives = max(self._arrives, network.world.now + network.seconds_between(self.source, self.target))
        network.world.call_at(self._arrives, lambda: self._arrive(item))

    def _arrive(self, item: Any) -> None:
        if (self.source, self.target) in self._network.blocked or self._held:
            self._held.append(item)
        else:
            self._deliver(item)

    def flush(self) -> None:
        held, self._held = self._held, deque()
        for item in held:
            self._deliver(item)

    def _deliver(self, item: Any) -> None:
        if self.num_left is not None:
            if not self.num_left:
                return
            self.num_left -= 1
        self.num_under_way -= 1
        if self._to_server and isinstance(item, Open):
            self._stream.opened()
        elif self._to_server and isinstance(item, Cancel):
            self._stream.tell_server()
        elif not self.target.loop.is_dead:
            self.inbox.append(item)
            self.wake_reader()

    def take(self) -> Any:
        item = self.inbox.popleft()
        if self.writer is not None:
            if not self.writer.done():
                self.writer.set_result(None)
            self.writer = None
        return item

    def wake_reader(self) -> None:
        if self.reader is not None:
            if not self.reader.done():
                self.reader.set_result(None)
            self.reader = None

    def wake_writer(self) -> None:
        if self.writer is not None:
            if not self.writer.done():
                self.writer.set_result(None)
            self.writer = None
