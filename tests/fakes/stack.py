"""Router and schedulers in the test's own process, over fake workers, with real gRPC between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from quire.scheduler.v1 import scheduler_pb2_grpc
from services.router.config import RouterConfig
from services.router.main import Router
from services.scheduler.config import SchedulerConfig
from services.scheduler.servicer import SchedulerServicer
from services.scheduler.worker_groups.claimer import Claimer
from services.scheduler.worker_groups.fleet import Fleet
from services.scheduler.worker_groups.worker_group import WorkerGroup
from shared.discovery import Source, StaticSource
from shared.grpc_server import GrpcServer
from tests.fakes.fake_model import FakeModel
from tests.fakes.fake_worker import FakeWorker, Script
from tests.fakes.waiting import HANG_S, until
from tests.integration.router.fake_scheduler import bundle_of
from tests.integration.router.small_tokenizers import byte_level, tokenizer_config


@dataclass(slots=True)
class RunningScheduler:
    address: str
    fleet: Fleet
    servicer: SchedulerServicer
    server: GrpcServer

    @property
    def groups(self) -> list[WorkerGroup]:
        return self.fleet.groups

    @property
    def num_unfinished(self) -> int:
        return sum(group.num_unfinished for group in self.groups)


def talking_worker(script: Script | None = None, *, version: str = "", weights: int = 0) -> FakeWorker:
    """A worker with a tokenizer, so that a router can serve its model. `weights`: as in FakeModel."""
    bundle, _ = bundle_of(byte_level().to_str(), json.dumps(tokenizer_config()))
    return FakeWorker(
        make_model=lambda: FakeModel(num_blocks=2048, max_num_seqs=32, max_num_batched_tokens=512, weights=weights),
        version=version,
        script=script or Script(),
        tokenizer_bundle=bundle,
    )


def patient(config: SchedulerConfig) -> SchedulerConfig:
    """Returns options with which no worker counts as hung, unless a test sets the time itself: tests hold back results
    for as long as they like, and machines can be slow."""
    is_default = config.step_timeout == SchedulerConfig().step_timeout
    return replace(config, step_timeout=HANG_S) if is_default else config


@asynccontextmanager
async def running_scheduler(
    address: str, *workers: str, config: SchedulerConfig | None = None, source: Source | None = None
) -> AsyncIterator[RunningScheduler]:
    """Runs a scheduler. `workers`: addresses of its worker groups. `source`: discovers them instead, if given. Returns
    once the groups of `workers` are there."""
    fleet = Fleet(f"scheduler at {address}", patient(config or SchedulerConfig()))
    claimer = Claimer(fleet, source or StaticSource(workers))
    servicer = SchedulerServicer(fleet)
    server = GrpcServer(["quire.scheduler.v1.SchedulerService"])
    server.add(scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, servicer)
    (bound,) = await server.start([address])
    tasks = [asyncio.create_task(claimer.run()), asyncio.create_task(servicer.tick_forever())]
    try:
        await until(lambda: len(fleet.groups) >= len(workers))
        yield RunningScheduler(bound, fleet, servicer, server)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop(0)


@asynccontextmanager
async def running_router(
    address: str, *schedulers: str, wait: bool = True, source: Source | None = None, **options: Any
) -> AsyncIterator[Router]:
    """Yields a router. `schedulers`: addresses. `source`: discovers them instead, if given. `wait`: whether to wait
    until the router is ready for requests. `options`: fields of RouterConfig."""
    config = RouterConfig(listen=(address,), scheduler=schedulers, **({"drain_timeout": 0.0} | options))
    router = Router(config, schedulers=source)
    await router.start()
    try:
        if wait:
            await router.ready.wait()
        yield router
    finally:
        await router.stop()
