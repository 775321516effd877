"""What a scheduler's health says while it stands by, serves and drains."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.scheduler import main
from services.scheduler.config import SchedulerConfig
from shared.grpc_server import LIVENESS, READINESS
from shared.status import StatusReporter
from tests.fakes.fake_worker import FakeWorker, start_fake_worker
from tests.fakes.waiting import HANG_S

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_scheduler_without_a_worker_stands_by(tmp_path: Path) -> None:
    worker, address = f"unix:{tmp_path}/worker", f"unix:{tmp_path}/scheduler"
    config = SchedulerConfig(listen=(address,), worker=(worker,))
    serving = asyncio.create_task(main.serve(config, StatusReporter(None)))
    async with asyncio.timeout(HANG_S), grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)

        async def until(name: str, status: int) -> None:
            watch = health.Watch(health_pb2.HealthCheckRequest(service=name), wait_for_ready=True)
            while (await watch.read()).status != status:
                pass
            watch.cancel()

        await until(READINESS, SERVING)
        await until(LIVENESS, SERVING)
        check = health_pb2.HealthCheckRequest(service=main.SERVICE)
        assert (await health.Check(check)).status == NOT_SERVING
        server = await start_fake_worker(FakeWorker(), worker)
        await until(main.SERVICE, SERVING)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=READINESS))
        # A server that stops takes no new calls, so this one must have arrived.
        assert (await watch.read()).status == SERVING
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
        await serving
        await server.stop(0)
