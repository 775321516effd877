"""A gateway that is told to stop says so first, then sends its clients away, and ends when they have gone."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from quire.kserve.v1 import open_inference_pb2, open_inference_pb2_grpc
from tests.fakes.waiting import HANG_S, until
from tests.integration.gateway.client import Reply, call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter, event, waiting_for

CHAT = "/v1/chat/completions"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
_GOAWAY = 7


@pytest.fixture
async def delaying(short_directory: Path, router: FakeRouter) -> AsyncIterator[Gateway]:
    """A gateway that serves on after its health says no, for longer than a test takes."""
    gateway = await start_gateway(
        short_directory, [f"unix:{short_directory}/router.sock"], "--drain-delay", "3600", "--drain-timeout", "0"
    )
    yield gateway
    gateway.process.send_signal(signal.SIGTERM)
    await gateway.stop()


async def is_red(gateway: Gateway) -> bool:
    return (await call(gateway.address, "GET", "/health")).status == 503


async def until_red(gateway: Gateway) -> None:
    async with asyncio.timeout(HANG_S):
        while not await is_red(gateway):
            pass


async def test_health_says_no_while_everything_is_served(delaying: Gateway, router: FakeRouter) -> None:
    async with grpc.aio.insecure_channel(delaying.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        kserve = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert (await kserve.ServerReady(open_inference_pb2.ServerReadyRequest())).ready
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING

        delaying.process.send_signal(signal.SIGTERM)
        await until_red(delaying)

        for name in ("", "quire.inference.v1.InferenceService"):
            status = (await health.Check(health_pb2.HealthCheckRequest(service=name))).status
            assert status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert not (await kserve.ServerReady(open_inference_pb2.ServerReadyRequest())).ready
        assert (await kserve.ServerLive(open_inference_pb2.ServerLiveRequest())).live
        assert (await stub.ListModels(inference_pb2.ListModelsRequest())).models
        reply = await call(delaying.address, "GET", "/health")
        assert reply.error["message"] == "The gateway is shutting down; send the request to another one."
        assert (await call(delaying.address, "GET", "/ping")).status == 503
        ready = await call(delaying.address, "GET", "/v2/health/ready")
        assert (ready.status, set(json.loads(ready.body))) == (503, {"error"})
        served = await call(delaying.address, "POST", CHAT, b"{}")
        assert (served.status, served.body) == (200, b"{}")
        assert not [name for name in served.headers if name.startswith("x-envoy")]


async def frames(reader: asyncio.StreamReader) -> list[int]:
    """The types of all frames until the connection ends."""
    types = []
    try:
        while True:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            types.append(head[3])
    except (asyncio.IncompleteReadError, ConnectionError):
        return types


async def test_idle_connections_are_told_to_go_while_a_stream_goes_on(gateway: Gateway, router: FakeRouter) -> None:
    host, _, port = gateway.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(_PREFACE)
    kept = http.client.HTTPConnection(gateway.address, timeout=HANG_S)
    kept.request("GET", "/health")
    assert await asyncio.to_thread(lambda: kept.getresponse().read())
    release = asyncio.Event()
    router.script = waiting_for(release.wait(), event("1"), event("2"))
    busy = http.client.HTTPConnection(gateway.address, timeout=HANG_S)
    busy.request("POST", CHAT, b"{}")
    response = await asyncio.to_thread(busy.getresponse)
    assert await asyncio.to_thread(response.readline) == b"data: 1\n"

    gateway.process.send_signal(signal.SIGTERM)

    assert _GOAWAY in await asyncio.wait_for(frames(reader), HANG_S)
    assert await asyncio.to_thread(kept.sock.recv, 1) == b""
    # The stream goes on although all others have gone. Who connects now is refused, not accepted and then sent away.
    assert gateway.process.returncode is None
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))
    release.set()
    assert b"data: 2" in await asyncio.to_thread(response.read)
    assert await asyncio.wait_for(gateway.process.wait(), HANG_S) == 0
    writer.close()


async def test_a_drain_ends_watches_of_health(short_directory: Path, router: FakeRouter) -> None:
    """gRPC's clients that check health keep one on each connection. It would never end by itself."""
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], "--drain-timeout", "3600")
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        gateway.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError):
            await asyncio.wait_for(watch.read(), HANG_S)
        assert await asyncio.wait_for(gateway.process.wait(), HANG_S) == 0


async def test_a_drain_ends_watches_of_health_from_a_browser(short_directory: Path, router: FakeRouter) -> None:
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], "--drain-timeout", "3600")
    watch = http.client.HTTPConnection(gateway.address, timeout=HANG_S)
    headers = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}
    watch.request("POST", "/grpc.health.v1.Health/Watch", bytes(5), headers)
    response = await asyncio.to_thread(watch.getresponse)
    assert response.status == 200
    assert await asyncio.to_thread(response.read, 5)
    gateway.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
        await asyncio.to_thread(response.read)
    assert await asyncio.wait_for(gateway.process.wait(), HANG_S) == 0


@pytest.fixture
async def patient(short_directory: Path, router: FakeRouter) -> AsyncIterator[Gateway]:
    """A gateway that waits for a router for longer than a test takes."""
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], "--router-wait", "60")
    yield gateway
    await gateway.stop()


async def test_a_request_waits_while_the_only_router_restarts(patient: Gateway, router: FakeRouter) -> None:
    gateway = patient
    assert (await call(gateway.address, "POST", CHAT, b"{}")).status == 200
    await router.stop()
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        typed = asyncio.ensure_future(stub.ListModels(inference_pb2.ListModelsRequest()))
        waiting = asyncio.create_task(call(gateway.address, "POST", CHAT, b"{}"))
        # A probe is answered at once, which also lets the requests reach the gateway.
        assert await is_red(gateway)
        again = FakeRouter("again")
        await again.start(f"unix:{gateway.access_log.parent}/router.sock")
        try:
            reply: Reply = await asyncio.wait_for(waiting, HANG_S)
            assert (reply.status, reply.body) == (200, b"{}")
            assert [model.name for model in (await typed).models] == ["again"]
        finally:
            await again.stop()


async def test_the_wait_for_a_router_ends(short_directory: Path) -> None:
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/none.sock"], "--router-wait", "0.5")
    try:
        reply = await call(gateway.address, "POST", CHAT, b"{}")
        assert (reply.status, reply.error["code"]) == (503, "unavailable")
    finally:
        await gateway.stop()
        await until(lambda: gateway.process.returncode is not None)
