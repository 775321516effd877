"""The clients: each sends one request of the catalog after another, and records what it receives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import grpc
from google.protobuf.json_format import MessageToDict

from quire.bench.events import EventParser
from quire.client.channel import CHANNEL_OPTIONS
from quire.client.errors import error_from_status
from quire.inference.v1 import inference_pb2_grpc
from tests.chaos.catalog import GrpcRequest, HttpRequest, Request
from tests.chaos.history import Call, Event, Outcome, Phase
from tests.fakes.waiting import HANG_S

# Longest time that a client waits after a refusal, whatever Retry-After says.
_LONGEST_PAUSE_S = 2.0
# HTTP status of the errors over gRPC by which a server answers a request. All others count as 500.
_STATUS = {
    grpc.StatusCode.UNAVAILABLE: 503, grpc.StatusCode.RESOURCE_EXHAUSTED: 429, grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
}  # fmt: skip


@dataclass(slots=True)
class _Received:
    """What a client has received of one answer so far."""

    clock: Callable[[], float]
    # Number of events after which the client goes away.
    leaves_after: int | None
    events: list[Event] = field(default_factory=list)
    status: int = 0
    retry_after: float | None = None
    detail: str = ""

    def add(self, data: str) -> None:
        self.events.append(Event(round(self.clock(), 4), data))

    @property
    def is_enough(self) -> bool:
        return self.leaves_after is not None and len(self.events) >= self.leaves_after


class Load:
    """Sends requests to gateways and hands a record of each call to `record`. Each call goes to a random gateway that
    accepts connections, as those do that a Kubernetes Service spreads.

    `ports`: of the gateways, by their names.
    """

    def __init__(
        self, host: str, ports: Mapping[str, int], clock: Callable[[], float], record: Callable[[Call], None]
    ) -> None:
        self._host, self._ports = host, ports
        self._chance = random.Random(0)
        self._clock = clock
        self._record = record
        self.num_sent = 0
        self.phase: Phase = "calm"
        # Each call has a connection of its own, so that no call fails for what happened to another.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        self._channels = {
            name: grpc.aio.insecure_channel(f"{host}:{port}", options=CHANNEL_OPTIONS) for name, port in ports.items()
        }

    async def close(self) -> None:
        await self._session.close()
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    async def run_client(self, requests: Sequence[Request], chance: random.Random, is_over: Callable[[], bool]) -> None:
        """Sends random requests, one after another, until `is_over()`."""
        while not is_over():
            call = await self.send(chance.choice(requests))
            if call.outcome == "cut" or call.status >= 400:
                await asyncio.sleep(min(_LONGEST_PAUSE_S, call.retry_after or 0.2))

    async def send(self, request: Request) -> Call:
        """Sends one request. Records and returns the call."""
        received = _Received(self._clock, request.leaves_after)
        id_, phase, start = f"chaos-{self.num_sent}", self.phase, self._clock()
        self.num_sent += 1
        outcome: Outcome = "ended"
        gateway = ""
        try:
            async with asyncio.timeout(HANG_S):
                gateway = await self._gateway()
                if isinstance(request, HttpRequest):
                    await self._over_http(request, gateway, id_, received)
                else:
                    await self._over_grpc(request, gateway, id_, received)
            if received.status == 200 and received.is_enough:
                outcome = "left"
        except TimeoutError:
            outcome = "hung"
        except (aiohttp.ClientError, OSError, grpc.aio.AioRpcError) as error:
            outcome, received.detail = "cut", f"{type(error).__name__}: {error}"[:500]
        call = Call(
            id_, request.name, gateway, phase, round(start, 4), round(self._clock(), 4), outcome, received.status,
            received.retry_after, received.detail, tuple(received.events),
        )  # fmt: skip
        self._record(call)
        return call

    async def _gateway(self) -> str:
        """Returns the name of a gateway that accepts connections. If none does, returns any of them."""
        names = self._chance.sample(list(self._ports), len(self._ports))
        for name in names:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(self._host, self._ports[name])
                writer.close()
                return name
        return names[0]

    async def _over_http(self, request: HttpRequest, gateway: str, id_: str, received: _Received) -> None:
        url = f"http://{self._host}:{self._ports[gateway]}{request.path}"
        data = json.dumps(request.body)
        headers = {"content-type": "application/json", "x-request-id": id_}
        async with self._session.post(url, data=data, headers=headers) as response:
            received.status = response.status
            received.retry_after = _seconds(response.headers.get("retry-after"))
            if response.status != 200 or not request.is_stream:
                body = (await response.read()).decode(errors="replace")
                received.add(body)
                received.detail = body[:500] if response.status != 200 else ""
                return
            parser = EventParser()
            async for piece in response.content.iter_any():
                for data_of_event in parser.feed(piece):
                    received.add(data_of_event.decode())
                if received.is_enough:
                    response.close()
                    return

    async def _over_grpc(self, request: GrpcRequest, gateway: str, id_: str, received: _Received) -> None:
        stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(
            self._channels[gateway]
        )
        method = getattr(stub, request.method)
        # Waits for a connection: otherwise calls fail for a second after a gateway is there again, by gRPC's backoff.
        call: Any = method(request.message, metadata=(("x-request-id", id_),), wait_for_ready=True)
        try:
            async for message in call:
                received.status = 200
                received.add(json.dumps(MessageToDict(message, preserving_proto_field_name=True)))
                if received.is_enough:
                    return
        except grpc.aio.AioRpcError as raised:
            error = error_from_status(raised.code(), raised.details(), raised.trailing_metadata())
            # A server that is busy or stopping says when to try again. The transport does not.
            if received.events or (error.status is grpc.StatusCode.UNAVAILABLE and error.retry_after is None):
                raise
            received.status = _STATUS.get(error.status, 500)
            received.retry_after = error.retry_after
            received.detail = f"{error.status.name}: {error.message}"[:500]
        finally:
            call.cancel()


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
