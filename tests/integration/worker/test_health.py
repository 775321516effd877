"""Health tells progress, not that a process is up."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.worker.v1 import worker_pb2_grpc
from services.worker import main
from services.worker.service.servicer import WorkerServicer
from services.worker.service.step_thread import StepThread
from services.worker.startup.load import LoadedWorker
from shared.grpc_server import LIVENESS, READINESS, GrpcServer
from tests.fakes.waiting import HANG_S
from tests.integration.worker.client import claimed, new_sequence, rows, values


async def test_a_step_that_hangs_turns_health_red_until_it_is_through(
    steps: StepThread, servicer: WorkerServicer, engine: LoadedWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "WATCH_INTERVAL_S", 0.01)
    go_on = threading.Event()
    forward = engine.runner._forward.run

    def hanging(*arguments: Any) -> Any:
        assert go_on.wait(timeout=HANG_S)
        return forward(*arguments)

    monkeypatch.setattr(engine.runner._forward, "run", hanging)
    server = GrpcServer([main.SERVICE])
    server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, servicer)
    address = f"unix:{tmp_path}/worker.sock"
    await server.start([address])
    await server.set_serving(True)
    stop = asyncio.Event()
    watching = asyncio.create_task(main.watch(steps, server, stop, asyncio.Event()))
    async with grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        names = (main.SERVICE, READINESS, LIVENESS)
        watches = [health.Watch(health_pb2.HealthCheckRequest(service=name)) for name in names]
        states = health_pb2.HealthCheckResponse

        async def read() -> set[int]:
            """The next change of each name."""
            return {(await watch.read()).status for watch in watches}

        assert await read() == {states.SERVING}
        stream = await claimed(channel)
        await stream.plan(new_sequences=[new_sequence(1, 0, [5, 6], [0])], rows=rows((1, 0, 2, 0)), late_after_s=0.1)
        assert await read() == {states.NOT_SERVING}
        go_on.set()
        assert len(values((await stream.result()).token_ids)) == 1
        assert await read() == {states.SERVING}
        stop.set()
        await watching
        for watch in watches:
            watch.cancel()
    await server.stop(0)
