"""Answers that send nothing for 90 s arrive whole, on every hop, over HTTP and gRPC; so do those whose worker or
scheduler is stopped for longer than its peers wait for it. One test, because all of that can wait at the same time.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import openai

from quire.client import AsyncClient
from quire.client.options import generate_request
from quire.inference.v1 import inference_pb2_grpc
from tests.e2e.stopped_parts import stop_parts_under_load
from tests.fakes.fake_worker import start_fake_worker
from tests.fakes.stack import running_router, running_scheduler, talking_worker
from tests.fakes.waiting import HANG_S, until
from tests.integration.gateway.conftest import start_gateway

SILENCE_S = 90.0
MODEL = "fake"
PROMPT = "Hello, world!"
MAX_TOKENS = 60
# The most often that gRPC's clients for Go and Java ping, with and without calls.
PINGING = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


@dataclass(slots=True)
class Asked:
    """One request, and what came of it."""

    text: str = ""
    began: asyncio.Event = field(default_factory=asyncio.Event)
    # Seconds on the monotonic clock.
    ended: float = 0.0
    error: BaseException | None = None

    async def run(self, pieces: AsyncIterator[str]) -> None:
        try:
            async for piece in pieces:
                self.text += piece
                self.began.set()
        except Exception as error:
            self.error = error
        self.began.set()
        self.ended = time.monotonic()


async def http_whole(client: openai.AsyncOpenAI) -> AsyncIterator[str]:
    answer = await client.completions.create(
        model=MODEL, prompt=PROMPT, temperature=0, max_tokens=MAX_TOKENS, extra_body={"ignore_eos": True}
    )
    yield answer.choices[0].text


async def http_stream(client: openai.AsyncOpenAI) -> AsyncIterator[str]:
    stream = await client.completions.create(
        model=MODEL, prompt=PROMPT, temperature=0, max_tokens=MAX_TOKENS, stream=True, extra_body={"ignore_eos": True}
    )
    async for event in stream:
        yield event.choices[0].text


async def grpc_whole(client: AsyncClient) -> AsyncIterator[str]:
    result = await client.generate(PROMPT, temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    yield result.choices[0].text


async def grpc_stream(client: AsyncClient) -> AsyncIterator[str]:
    async for delta in client.stream_generate(PROMPT, temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True):
        yield delta.text


async def pinging_stream(channel: grpc.aio.Channel) -> AsyncIterator[str]:
    stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
    request = generate_request(MODEL, PROMPT, {"temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True})
    async for message in stub.Generate(request):
        yield message.delta.text


async def test_no_silence_costs_an_answer() -> None:
    with tempfile.TemporaryDirectory(prefix="quire-test-") as directory:
        await asyncio.gather(keep_answers_silent(Path(directory)), asyncio.to_thread(stop_parts_under_load))


async def keep_answers_silent(directory: Path) -> None:
    """Raises AssertionError if one is cut."""
    worker = talking_worker()
    async with AsyncExitStack() as stack:
        server = await start_fake_worker(worker, f"unix:{directory}/w")
        stack.push_async_callback(server.stop, 0)
        scheduler = await stack.enter_async_context(running_scheduler(f"unix:{directory}/s", f"unix:{directory}/w"))
        direct = f"unix:{directory}/r"
        router = await stack.enter_async_context(running_router(direct, scheduler.address))
        gateway = await start_gateway(directory, [direct])
        stack.push_async_callback(gateway.stop)
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=HANG_S
        ) as http:
            stack.push_async_callback(http.close)
            clients = [
                await stack.enter_async_context(AsyncClient(address, max_retries=0))
                for address in (gateway.address, direct)
            ]
            channels = [
                await stack.enter_async_context(grpc.aio.insecure_channel(address, options=PINGING))
                for address in (gateway.address, direct)
            ]
            calls: dict[str, Callable[[], AsyncIterator[str]]] = {
                "HTTP, whole": lambda: http_whole(http),
                "HTTP, streamed": lambda: http_stream(http),
                "gRPC through the gateway, whole": lambda: grpc_whole(clients[0]),
                "gRPC through the gateway, streamed": lambda: grpc_stream(clients[0]),
                "gRPC to the router, whole": lambda: grpc_whole(clients[1]),
                "gRPC to the router, streamed": lambda: grpc_stream(clients[1]),
                "pinging through the gateway": lambda: pinging_stream(channels[0]),
                "pinging the router": lambda: pinging_stream(channels[1]),
            }

            # Connected first, so that a busy machine that is slow to accept does not fail a call.
            for channel in (*channels, *(client._channel for client in clients)):
                await channel.channel_ready()
            expected = Asked()
            await expected.run(calls["HTTP, whole"]())
            assert expected.error is None
            assert expected.text

            gate = worker.script.gate = asyncio.Semaphore(0)
            asked = {name: Asked() for name in calls}
            tasks = [asyncio.create_task(asked[name].run(call())) for name, call in calls.items()]
            streams = [name for name in calls if not name.endswith("whole")]
            await until(lambda: scheduler.num_unfinished == len(calls))
            num_steps = 0
            while not all(asked[name].began.is_set() for name in streams):
                # A token for each. With so few, none reaches its end.
                if num_steps < MAX_TOKENS // 2:
                    num_steps += 1
                    gate.release()
                await asyncio.sleep(0.05)
            began = time.monotonic()
            await asyncio.wait(tasks, timeout=SILENCE_S, return_when=asyncio.ALL_COMPLETED)
            cut = {name: round(one.ended - began, 1) for name, one in asked.items() if one.ended}
            assert not cut, f"cut after so many seconds: {cut}: {[asked[name].error for name in cut]}"

            worker.script.gate = None
            for _ in range(1000):
                gate.release()
            await asyncio.wait(tasks)
            for name, one in asked.items():
                assert (one.error, one.text) == (None, expected.text), name
            assert worker.epoch == 1, "the worker was lost"
            assert router.placement.num_resubmissions == 0, "the scheduler was lost"
