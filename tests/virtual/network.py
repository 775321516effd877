"""A network in virtual time: streams with the promises of gRPC, and every way in which gRPC breaks them.

Within a stream, messages keep their order, and none comes twice. A stream can be cut at any message; each end learns of
it at its own time, or by gRPC's pings. Until then the stream is half open: what is written to it vanishes, and the
peer can accept another stream beside it. A direction between two processes can be blocked for a while, and slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc

from shared.malformed import MalformedRequestError
from shared.transport import Method, StreamEndedError
from tests.virtual.loop import PartLoop, World
from tests.virtual.pipe import Cancel, End, Open, Pipe

RequestT = TypeVar("RequestT", bound=Any)
ResponseT = TypeVar("ResponseT", bound=Any)

# gRPC's pings find a dead or silent peer after this time (shared/grpc_server.py).
PING_S = 15.0
# A client that waits until its server is there tries again after at most this time.
RECONNECT_S = 1.0

Handler = Callable[[Any], Awaitable[None]]


class Watch:
    """Looks on while a process writes to its streams, reads from them, and learns that they have ended."""

    def written(self, stream: Stream, message: Any) -> None:
        pass

    def read(self, stream: Stream, message: Any) -> None:
        pass

    def ended(self, stream: Stream, code: grpc.StatusCode) -> None:
        pass


@dataclass(eq=False, slots=True)
class Host:
    """One process on the network. `address` is "" for a process that only calls others."""

    name: str
    loop: PartLoop
    address: str = ""
    handlers: dict[str, Handler] = field(default_factory=dict)
    # Whether the process has done more than to start.
    has_begun: bool = False
    # Sees what the process does as a client.
    watch: Watch = field(default_factory=Watch)


class Network:
    def __init__(self, world: World, window: int) -> None:
        """`window`: number of messages that a stream takes before its reader has read the first of them."""
        self.world = world
        self.window = window
        self.seconds = (0.0001, 0.001)  # shortest and longest time of a message
        self.listening: dict[str, Host] = {}
        self.streams: list[Stream] = []
        self.blocked: set[tuple[Host, Host]] = set()
        self.slow: dict[tuple[Host, Host], float] = {}
        # Called for each message that is sent. Returns the messages that arrive in its place.
        self.tamper: Callable[[Stream, str, Any], list[Any]] | None = None
        # Statuses that a server gave to a client whose message it did not accept.
        self.refusals: list[str] = []
        self.is_healed = False
        self._told: list[Callable[[], None]] = []

    def channel(self, host: Host, address: str) -> SimulatedChannel:
        return SimulatedChannel(self, host, address)

    def listen(self, host: Host) -> None:
        self.listening[host.address] = host

    def later(self, longest: float, callback: Callable[[], None]) -> None:
        """Calls back within `longest` seconds, or when the network heals."""
        is_called = False

        def once() -> None:
            nonlocal is_called
            if not is_called:
                is_called = True
                callback()

        if self.is_healed:
            longest = min(longest, 0.01)
        self._told.append(once)
        self.world.call_later(self.world.random.uniform(0, longest), once)

    # -- Faults --------------------------------------------------------------------------------------------------------

    def cut(self, stream: Stream, client_s: float, server_s: float) -> None:
        """Cuts a stream. Some of the messages under way still arrive. `client_s`, `server_s`: longest time until the
        end learns of the cut."""
        if stream.is_cut:
            return
        stream.is_cut = True
        for pipe in stream.pipes:
            pipe.num_left = self.world.random.randint(0, pipe.num_under_way)
        self.later(client_s, stream.tell_client)
        self.later(server_s, stream.tell_server)

    def gone(self, host: Host, longest: float) -> None:
        """The process has ended: its peers learn of it within `longest` seconds."""
        self.refuse_calls(host)
        for stream in self._streams_of(host):
            self.cut(stream, longest, longest)

    def refuse_calls(self, host: Host) -> None:
        """The process takes no new calls."""
        if self.listening.get(host.address) is host:
            del self.listening[host.address]

    def end_calls(self, host: Host) -> list[asyncio.Task[None]]:
        """The process cancels the calls that it serves. Returns their tasks, which have still to end."""
        calls = self.calls_of(host)
        for stream in calls:
            self.cut(stream, 0.001, 0.0)
            stream.tell_server()
        return [stream.task for stream in calls if stream.task is not None]

    def calls_of(self, host: Host) -> list[Stream]:
        """The calls that the process serves."""
        return [stream for stream in self.streams if stream.server is host]

    def block(self, source: Host, target: Host, seconds: float) -> None:
        """Holds every message from `source` to `target`. Pings find out if it takes long."""
        self.blocked.add((source, target))
        self.world.call_later(PING_S, lambda: self._ping(source, target))
        self.later_exactly(seconds, lambda: self.unblock(source, target))

    def later_exactly(self, seconds: float, callback: Callable[[], None]) -> None:
        self.world.call_later(seconds, callback)

    def unblock(self, source: Host, target: Host) -> None:
        self.blocked.discard((source, target))
        for stream in self.streams:
            for pipe in stream.pipes:
                if (pipe.source, pipe.target) == (source, target):
                    pipe.flush()

    def silent(self, host: Host) -> None:
        """The process answers no pings, because it is paused."""
        for stream in self._streams_of(host):
            self.world.call_later(PING_S, partial(self._missing, host, stream))

    def heal(self) -> None:
        """Ends all blocks and delays, and tells every end what happened to its streams."""
        self.is_healed = True
        self.slow.clear()
        self.tamper = None
        for source, target in list(self.blocked):
            self.unblock(source, target)
        for callback in self._told:
            callback()
        self._told.clear()

    def _missing(self, host: Host, stream: Stream) -> None:
        if not host.loop.is_up and not host.loop.is_dead:
            self.cut(stream, 0.1, 0.1)

    def _ping(self, source: Host, target: Host) -> None:
        if (source, target) in self.blocked:
            for stream in self.streams:
                if {stream.client, stream.server} == {source, target}:
                    self.cut(stream, 1.0, 1.0)

    def _streams_of(self, host: Host) -> list[Stream]:
        return [stream for stream in self.streams if host in (stream.client, stream.server)]

    def seconds_between(self, source: Host, target: Host) -> float:
        random = self.world.random
        slow = self.slow.get((source, target))
        return random.uniform(*self.seconds) if slow is None else random.uniform(0.0, slow)


class Stream:
    """One call: its two directions, and what each end knows."""

    def __init__(self, network: Network, client: Host, address: str, method: Method[Any, Any], waits: bool) -> None:
        self.network = network
        self.client = client
        self.server = network.listening.get(address, client)
        self.method = method
        self.address = address
        self._waits = waits
        self._queued: list[Any] | None = None
        self.is_cut = False
        self.end: End | None = None
        self.is_cancelled = False
        self.task: asyncio.Task[None] | None = None
        self._is_lost_to_server = False
        self._is_closed = False
        self._connect()

    def _connect(self) -> None:
        network = self.network
        server = network.listening.get(self.address)
        if self.client.loop.is_dead or self.end is not None or self.is_cancelled:
            return
        if server is None:
            self.pipes: list[Pipe] = []
            if self._queued is None:
                self._queued = []
            if self._waits:
                network.world.call_later(network.world.random.uniform(0.1, RECONNECT_S), self._connect)
            else:
                self._ended_by_network("connection refused")
            return
        self.server = server
        self.up = Pipe(self, self.client, server, True)
        self.down = Pipe(self, server, self.client, False)
        self.pipes = [self.up, self.down]
        network.streams.append(self)
        self.up.send(Open())
        for item in self._queued or ():
            self.up.send(item)
        self._queued = None
        if self.reader is not None:
            self.down.reader, self.reader = self.reader, None

    reader: asyncio.Future[None] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing has ended the stream, on either side."""
        return not self.is_cut and not self.has_left

    @property
    def has_left(self) -> bool:
        """Whether the client has ended the stream, or knows that it has ended."""
        return self.end is not None or self.is_cancelled

    @property
    def is_connected(self) -> bool:
        return bool(self.pipes)

    def send(self, data: Any) -> None:
        if self._queued is not None:
            self._queued.append(data)
        else:
            self.up.send(data)

    def opened(self) -> None:
        """The server accepts the call, if it does not know yet that the connection is lost."""
        if self.server.loop.is_dead or self._is_lost_to_server:
            return
        handler = self.server.handlers[self.method.path]
        self.task = self.server.loop.create_task(_serve(handler, _SimulatedServerStream(self)), name="call")
        self.task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        if self.network.world.is_over or self.server.loop.is_dead:
            return
        if task.cancelled():
            self._close()
            return
        error = task.exception()
        if error is None:
            end = End(grpc.StatusCode.OK, "")
        elif isinstance(error, _AbortError):
            end = End(error.code, error.details)
        elif isinstance(error, MalformedRequestError):
            end = End(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        else:
            end = End(grpc.StatusCode.UNKNOWN, repr(error))
            self.network.world.problems.append(f"{self.server.name} failed a call: {error!r}")
        if end.code is grpc.StatusCode.INVALID_ARGUMENT:
            self.network.refusals.append(f"{self.server.name}: {end.details}")
        self.down.send(end)

    def tell_client(self) -> None:
        """The client learns that the stream is cut."""
        if self.end is None and not self.is_cancelled:
            self._ended_by_network("the connection was lost")

    def tell_server(self) -> None:
        """The server learns that the stream is cut or cancelled."""
        self._is_lost_to_server = True
        if self.task is not None and not self.task.done() and not self.server.loop.is_dead:
            self.task.cancel()

    def cancel(self) -> None:
        if self.network.world.is_over or self.client.loop.is_dead or self.is_cancelled:
            return
        self.is_cancelled = True
        if self.is_connected:
            self.up.send(Cancel())
            self.down.wake_reader()
            self.up.wake_writer()
        elif self.reader is not None and not self.reader.done():
            self.reader.set_result(None)

    def _ended_by_network(self, reason: str) -> None:
        self.end = End(grpc.StatusCode.UNAVAILABLE, reason)
        if self.is_connected:
            self.down.wake_reader()
            self.up.wake_writer()
        elif self.reader is not None and not self.reader.done():
            self.reader.set_result(None)
        self._close()

    def _close(self) -> None:
        """Forgets a stream that both ends have left."""
        is_served = self.task is None or self.task.done() or self.server.loop.is_dead
        is_left = self.has_left or self.client.loop.is_dead
        if is_served and is_left and not self._is_closed:
            self._is_closed = True
            if self in self.network.streams:
                self.network.streams.remove(self)


async def _serve(handler: Handler, stream: _SimulatedServerStream) -> None:
    await handler(stream)


class SimulatedChannel:
    """Implements shared.transport.Channel."""

    def __init__(self, network: Network, host: Host, address: str) -> None:
        self._network = network
        self._host = host
        self._address = address
        self._open: list[SimulatedStream] = []

    def open(self, method: Method[RequestT, ResponseT], *, wait_for_ready: bool = False) -> SimulatedStream:
        """No part has two streams of a method to the same peer. It ends one before it opens the next."""
        network, host = self._network, self._host
        others = (each for each in network.streams if (each.client, each.address) == (host, self._address))
        if any(other.method is method and not other.has_left for other in others):
            network.world.problems.append(f"{host.name} opens a second stream to {self._address} beside its first")
        stream = SimulatedStream(Stream(self._network, self._host, self._address, method, wait_for_ready))
        self._open = [other for other in self._open if not other.is_over]
        self._open.append(stream)
        return stream

    async def replies(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float | None = None
    ) -> AsyncIterator[ResponseT]:
        raise StreamEndedError(grpc.StatusCode.UNIMPLEMENTED, "the simulation has only streams")
        yield

    async def call(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        raise StreamEndedError(grpc.StatusCode.UNIMPLEMENTED, "the simulation has only streams")

    async def close(self) -> None:
        for stream in self._open:
            stream.cancel()


class SimulatedStream:
    """Implements shared.transport.ClientStream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def is_over(self) -> bool:
        return self._stream.has_left

    async def write(self, message: Any, /) -> None:
        stream = self._stream
        self._raise_if_over()
        try:
            while stream.is_connected and stream.up.is_full:
                stream.up.writer = asyncio.get_running_loop().create_future()
                await stream.up.writer
                self._raise_if_over()
            if not stream.is_connected:  # gRPC writes nothing before the connection is there
                stream.send(message.SerializeToString())
                return
        except asyncio.CancelledError:
            self.cancel()
            raise
        stream.client.watch.written(stream, message)
        for sent in _tampered(stream, stream.client.name, message):
            stream.send(sent.SerializeToString())

    async def read(self) -> Any:
        stream, watch = self._stream, self._stream.client.watch
        try:
            message = await self._read()
        except StreamEndedError as error:
            watch.ended(stream, error.code)
            raise
        watch.read(stream, message)
        return message

    async def _read(self) -> Any:
        stream = self._stream
        while True:
            if stream.is_cancelled:
                raise StreamEndedError(grpc.StatusCode.CANCELLED, "this side ended the stream")
            if stream.is_connected and stream.down.inbox:
                item = stream.down.take()
                if not isinstance(item, End):
                    return stream.method.response.FromString(item)
                stream.end = stream.end or item
                stream._close()
            if stream.end is not None:
                raise StreamEndedError(stream.end.code, stream.end.details)
            waiter = asyncio.get_running_loop().create_future()
            if stream.is_connected:
                stream.down.reader = waiter
            else:
                stream.reader = waiter
            try:
                await waiter
            except asyncio.CancelledError:
                self.cancel()
                raise

    def cancel(self) -> None:
        if self._stream.end is None:
            self._stream.cancel()
            self._stream._close()

    def _raise_if_over(self) -> None:
        stream = self._stream
        if stream.is_cancelled:
            raise StreamEndedError(grpc.StatusCode.CANCELLED, "this side ended the stream")
        if stream.end is not None:
            raise StreamEndedError(stream.end.code, stream.end.details)


class _AbortError(Exception):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class _SimulatedServerStream:
    """Implements shared.transport.ServerStream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def read(self) -> Any:
        pipe = self._stream.up
        while not pipe.inbox:
            pipe.reader = asyncio.get_running_loop().create_future()
            await pipe.reader
        return self._stream.method.request.FromString(pipe.take())

    async def write(self, message: Any, /) -> None:
        pipe = self._stream.down
        while pipe.is_full:
            pipe.writer = asyncio.get_running_loop().create_future()
            await pipe.writer
        for sent in _tampered(self._stream, self._stream.server.name, message):
            pipe.send(sent.SerializeToString())

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise _AbortError(code, details)


def _tampered(stream: Stream, sender: str, message: Any) -> list[Any]:
    tamper = stream.network.tamper
    return [message] if tamper is None else tamper(stream, sender, message)
