"""No client's pings end a connection, however often they come and however little the server sends meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from quire.client.channel import CHANNEL_OPTIONS as CLIENT_OPTIONS
from quire.inference.v1 import model_pb2
from quire.worker.v1 import worker_pb2, worker_pb2_grpc
from shared.grpc_server import CHANNEL_OPTIONS, SERVER_OPTIONS
from tests.fakes.fake_worker import FakeWorker, start_fake_worker

# By default a gRPC server counts each of these pings as abuse and closes the connection after the third. gRPC's clients
# send at most one a second.
PINGING = [
    ("grpc.keepalive_time_ms", 100),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A connection for each channel.
    ("grpc.use_local_subchannel_pool", 1),
]
PINGED_FOR_S = 7.0


async def test_clients_may_ping_a_silent_server(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/w"
    server = await start_fake_worker(FakeWorker(), address)
    try:
        async with (
            grpc.aio.insecure_channel(address, options=PINGING) as channel,
            grpc.aio.insecure_channel(address, options=PINGING) as unused,
        ):
            call = worker_pb2_grpc.WorkerServiceStub(channel).Run()
            await call.write(worker_pb2.RunRequest(claim=worker_pb2.Claim(scheduler_id="test")))
            assert isinstance(await call.read(), worker_pb2.RunResponse)
            assert "".join([chunk async for chunk in tokenizer(unused)]) == ""
            await asyncio.sleep(PINGED_FOR_S)
            assert not call.done(), await call.details()
            assert unused.get_state() is grpc.ChannelConnectivity.READY
    finally:
        await server.stop(0)


async def tokenizer(channel: grpc.aio.Channel) -> AsyncIterator[str]:
    """The fake worker has none: a call that ends at once."""
    async for response in worker_pb2_grpc.WorkerServiceStub(channel).GetTokenizer(model_pb2.GetTokenizerRequest()):
        yield response.chunk.decode()


def test_every_end_keeps_pinging_through_a_silence() -> None:
    for options in (CHANNEL_OPTIONS, SERVER_OPTIONS, CLIENT_OPTIONS):
        assert dict(options)["grpc.http2.max_pings_without_data"] == 0
        assert dict(options)["grpc.keepalive_time_ms"] >= 10_000, "less is more than Envoy and other servers bear"
