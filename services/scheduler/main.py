"""Composition root of the scheduler: `quire scheduler`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import uuid
from collections.abc import Sequence

from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.scheduler.config import SchedulerConfig
from services.scheduler.metrics import FleetCollector, LoadCollector
from services.scheduler.servicer import SchedulerServicer
from services.scheduler.worker_groups import Claimer, Fleet, UnusableWorkerError
from shared.config import ConfigError, resolve, stop
from shared.discovery import DiscoveryCollector, Kind, Registry, source_of
from shared.garbage import settle_garbage
from shared.grpc_server import GrpcServer
from shared.log import configure_logging
from shared.metrics import registry_of, start_metrics_server
from shared.presets import OF_SCHEDULERS, Preset
from shared.status import StatusReporter, warnings_as_notes
from shared.telemetry import configure_tracing, shutdown_tracing

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.05
# Seconds for sending the last frames to routers.
_LAST_FRAMES_S = 0.5
PROG = "quire scheduler"
SERVICE = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"].full_name


def main(argv: Sequence[str]) -> int:
    preset = Preset(OF_SCHEDULERS)
    config = resolve(
        SchedulerConfig,
        argv,
        prog=PROG,
        description="Runs one scheduler: continuous batching and KV block tables.",
        expand=preset.expand,
    )
    configure_logging("scheduler", config.log_level, config.log_format)
    if preset.note:
        logger.info("%s", preset.note)
    status = StatusReporter(config.status_fd)
    if not config.worker and not config.redis:
        status.failed("no worker given")
        stop(PROG, "no worker given: name at least one with --worker, or the Redis that knows them with --redis")
    if (config.max_num_batched_tokens or 0) < (config.max_num_seqs or 0) and config.max_num_batched_tokens is not None:
        reason = "--max-num-batched-tokens is less than --max-num-seqs: a step could not decode every sequence"
        status.failed(reason)
        stop(PROG, reason)
    configure_tracing("scheduler")
    try:
        asyncio.run(serve(config, status))
    except (ConfigError, OSError, UnusableWorkerError) as error:
        status.failed(str(error))
        stop(PROG, str(error))
    finally:
        shutdown_tracing()
    return 0


async def serve(config: SchedulerConfig, status: StatusReporter) -> None:
    """Serves until SIGTERM or SIGINT. Raises OSError if an address cannot be bound, ConfigError if Redis cannot be used
    as the options say, and UnusableWorkerError if the first claimed worker cannot do what the options ask for."""
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    scheduler_id = f"scheduler-{uuid.uuid4().hex[:8]}"
    fleet = Fleet(scheduler_id, config)
    registry = Registry(config, advertise=config.advertise)
    workers = source_of(config.worker, Kind.WORKER, registry, lambda: fleet.model.name_and_version[0])
    claimer = Claimer(fleet, workers)
    servicer = SchedulerServicer(fleet)
    server = GrpcServer([SERVICE])
    server.add(scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, servicer)
    addresses = await server.start(config.listen)
    if config.metrics_port is not None:
        collector = LoadCollector(
            lambda: fleet.model.name_and_version,
            servicer.load,
            servicer.throughput.rates,
        )
        metrics = registry_of(collector, FleetCollector(fleet), DiscoveryCollector([workers], registry))
        start_metrics_server(config.metrics_host, config.metrics_port, metrics)
    status.starting("waiting for a worker")
    background = [
        asyncio.create_task(claimer.run()),
        asyncio.create_task(servicer.tick_forever()),
        asyncio.create_task(_report_health(fleet, server, status, addresses, registry)),
    ]
    stop_wait = asyncio.create_task(stopping.wait())
    try:
        done, _ = await asyncio.wait([*background, stop_wait], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stop_wait}:
            task.result()
        # The drain does not wait for Redis.
        await asyncio.gather(registry.leave(), drain(servicer, server, config.drain_timeout))
    finally:
        for task in (*background, stop_wait):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, UnusableWorkerError):
                await task
        await server.stop(0)
        await registry.close()


async def drain(servicer: SchedulerServicer, server: GrpcServer, timeout_s: float) -> None:
    """Refuses new requests, and waits up to `timeout_s` for those that run. Then ends the routers' streams: routers
    resubmit the sequences that still run to other schedulers. The workers must stay claimed meanwhile, because the loss
    of a worker would count against its sequences."""
    await server.set_serving(False)
    servicer.start_draining()
    await _wait_idle(servicer, timeout_s)
    await server.stop(_LAST_FRAMES_S)


async def _wait_idle(servicer: SchedulerServicer, timeout_s: float) -> None:
    for _ in range(int(timeout_s / POLL_INTERVAL_S)):
        if servicer.is_idle:
            return
        await asyncio.sleep(POLL_INTERVAL_S)


async def _report_health(
    fleet: Fleet, server: GrpcServer, status: StatusReporter, addresses: list[str], registry: Registry
) -> None:
    """Sets the server's health status to SERVING while a worker is claimed and makes progress. Connected routers keep
    their streams even while no worker is claimed, because the worker can come back. Registers the scheduler once a
    worker is claimed.
    """
    serving = stands_by = False
    reported = False
    with contextlib.ExitStack() as start:
        start.enter_context(warnings_as_notes(status))
        while True:
            ready = any(group.is_healthy for group in fleet.groups) and not fleet.is_draining
            if (serving, stands_by) != (ready, not fleet.is_draining):
                serving, stands_by = ready, not fleet.is_draining
                await server.set_serving(serving, stands_by=stands_by)
            if ready and not reported:
                reported = True
                start.close()
                settle_garbage()
                registry.join(Kind.SCHEDULER, addresses, model=fleet.model.info.name)
                status.ready(address=", ".join(addresses))
            await asyncio.sleep(POLL_INTERVAL_S)
