"""Several routers behind one gateway: balance, health, and what happens when one dies."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from tests.fakes.waiting import HANG_S
from tests.integration.gateway.client import Reply, call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import Context, FakeRouter, aborting, echo

CHAT = "/v1/chat/completions"


@pytest.fixture
async def doomed(short_directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A router in a process of its own that takes calls and never answers them."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.integration.gateway.fake_router",
            f"unix:{short_directory}/doomed.sock",
            "doomed",
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    yield process
    if process.returncode is None:
        process.kill()
    await process.wait()


@pytest.fixture
async def pair(short_directory: Path, router: FakeRouter, doomed: asyncio.subprocess.Process) -> AsyncIterator[Gateway]:
    gateway = await start_gateway(
        short_directory,
        [f"unix:{short_directory}/router.sock", f"unix:{short_directory}/doomed.sock"],
        *("--drain-timeout", "0"),
    )
    yield gateway
    await gateway.stop()


async def call_on(doomed: asyncio.subprocess.Process, gateway: Gateway, body: bytes) -> list[asyncio.Task[Reply]]:
    """Calls until one of them is with the doomed router."""
    assert doomed.stdout is not None
    taken = asyncio.create_task(doomed.stdout.readline())
    calls: list[asyncio.Task[Reply]] = []
    for _ in range(100):
        calls.append(asyncio.create_task(call(gateway.address, "POST", CHAT, body)))
        await asyncio.wait((calls[-1], taken), return_when=asyncio.FIRST_COMPLETED)
        if taken.done():
            assert taken.result() == b"called\n"
            return calls
    raise AssertionError("of 100 calls none went to the doomed router")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "suspended"])
async def test_calls_that_had_sent_nothing_are_answered_by_another_router(
    pair: Gateway, doomed: asyncio.subprocess.Process, end: signal.Signals
) -> None:
    """A suspended router's connections stay open. Only pings tell that it does not answer."""
    calls = await call_on(doomed, pair, b'{"stream": false}')

    doomed.send_signal(end)

    for reply in await asyncio.wait_for(asyncio.gather(*calls), HANG_S):
        assert (reply.status, reply.body) == (200, b'{"stream": false}')


async def test_after_a_routers_death_the_next_calls_succeed_at_once(
    pair: Gateway, doomed: asyncio.subprocess.Process
) -> None:
    doomed.kill()
    await doomed.wait()

    replies = await asyncio.gather(*(call(pair.address, "GET", "/health") for _ in range(20)))

    assert [json.loads(reply.body) for reply in replies] == [{"router": "fake"}] * 20


async def test_a_stream_under_way_breaks_with_a_transport_error(
    pair: Gateway, doomed: asyncio.subprocess.Process
) -> None:
    calls = await call_on(doomed, pair, b'{"stream": true}')

    doomed.kill()

    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), HANG_S)
    (broken,) = (outcome for outcome in outcomes if not isinstance(outcome, Reply))
    assert isinstance(broken, http.client.IncompleteRead | ConnectionError)


async def test_a_slow_router_gets_fewer_calls(pair: Gateway, doomed: asyncio.subprocess.Process) -> None:
    """Least requests: while one call hangs on the doomed router, all further ones go to the other."""
    await call_on(doomed, pair, b"{}")

    for _ in range(10):
        assert (await asyncio.wait_for(call(pair.address, "POST", CHAT, b"{}"), HANG_S)).status == 200


async def test_without_any_router_the_answer_is_503_in_openais_shape(gateway: Gateway, router: FakeRouter) -> None:
    await router.stop()

    reply = await call(gateway.address, "POST", CHAT, b"{}")

    assert (reply.status, reply.error["type"], reply.error["code"]) == (503, "server_error", "unavailable")
    assert reply.headers["retry-after"] == "1"


async def test_the_gateway_starts_before_its_routers(short_directory: Path) -> None:
    address = f"unix:{short_directory}/late.sock"
    gateway = await start_gateway(short_directory, [address])
    router = FakeRouter("late")
    try:
        assert (await call(gateway.address, "GET", "/health")).status == 503
        await router.start(address)
        async with asyncio.timeout(HANG_S):
            while (await call(gateway.address, "GET", "/health")).status != 200:
                pass
    finally:
        await gateway.stop()
        await router.stop()


async def test_a_name_stands_for_all_of_its_addresses(short_directory: Path) -> None:
    router = FakeRouter("named")
    (port,) = {address.rpartition(":")[2] for address in await router.start("localhost:0")}
    gateway = await start_gateway(short_directory, [f"localhost:{port}"])
    try:
        assert json.loads((await call(gateway.address, "GET", "/health")).body) == {"router": "named"}
    finally:
        await gateway.stop()
        await router.stop()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (grpc.StatusCode.CANCELLED, "CANCELLED"),
        # If no handler received the call.
        (grpc.StatusCode.UNAVAILABLE, "Cancelling all calls"),
    ],
)
async def test_a_call_that_a_stopping_router_cancels_is_made_again(
    gateway: Gateway, router: FakeRouter, status: grpc.StatusCode, words: str
) -> None:
    cancel = aborting(status, words)

    async def script(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        answers = cancel if router.calls == 1 else echo
        async for message in answers(request, context):
            yield message

    router.script = script
    reply = await call(gateway.address, "POST", CHAT, b'{"n": 1}')
    assert (reply.status, reply.body, router.calls) == (200, b'{"n": 1}', 2)
