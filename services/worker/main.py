"""The worker process: serves health checks at once, loads the model meanwhile, then runs steps until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from quire.worker.v1 import worker_pb2_grpc
from services.worker.checkpoint import check_start
from services.worker.config import WorkerConfig
from services.worker.errors import DeviceLostError, ModelError, StepThreadError
from services.worker.notices import tell_blocks, tell_model, warn_of_options
from services.worker.openmp import limit_spinning
from services.worker.progress import Phase, StartClock
from services.worker.service import StepLog, StepThread, WorkerServicer
from shared.config import ConfigError, resolve
from shared.discovery import Kind, Registry
from shared.garbage import settle_garbage
from shared.grpc_server import GrpcServer
from shared.log import configure_logging
from shared.presets import Preset
from shared.status import StatusReporter
from shared.telemetry import configure_tracing, shutdown_tracing

if TYPE_CHECKING:
    from services.worker.metrics import WorkerMetrics
    from services.worker.startup import LoadedWorker

logger = logging.getLogger(__name__)

SERVICE = "quire.worker.v1.WorkerService"
WATCH_INTERVAL_S = 1.0
DRAIN_S = 10.0
# Time limit for flushing spans and logs once the device is lost.
FLUSH_S = 2.0
# Python's thread switch interval. With the default of 5 ms, the event loop could keep the GIL from the step thread for
# 5 ms.
SWITCH_INTERVAL_S = 0.0005


def main(argv: Sequence[str]) -> int:
    preset = Preset()
    config = resolve(
        WorkerConfig,
        argv,
        prog="quire worker",
        description="Runs one worker: weights, KV cache and sampling.",
        expand=preset.expand,
    )
    configure_logging("worker", config.log_level, config.log_format)
    if preset.note:
        logger.info("%s", preset.note)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    limit_spinning()  # torch is imported later
    configure_tracing("worker")
    status = StatusReporter(config.status_fd)
    try:
        if asyncio.run(serve(config, status)):
            # A normal exit would take the interpreter from a thread inside torch, and C++ would abort the process.
            _leave(0)
    except DeviceLostError as error:
        _report(status, error)
        # To free tensors, graphs and pinned memory, a normal exit would call the lost device, and such calls can hang.
        _leave(1)
    except (ConfigError, ModelError, StepThreadError, OSError) as error:
        _report(status, error)
        return 1
    finally:
        shutdown_tracing()
    return 0


def _leave(status: int) -> NoReturn:
    """Ends the process at once, without a normal exit."""
    _flush()
    os._exit(status)


def _flush() -> None:
    """Flushes logs and exports spans. Waits at most FLUSH_S, because the process that reads the logs or receives the
    spans might be stuck."""

    def flush() -> None:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        shutdown_tracing()

    flushing = threading.Thread(target=flush, daemon=True)
    flushing.start()
    flushing.join(FLUSH_S)


def _report(status: StatusReporter, error: Exception) -> None:
    status.failed(str(error))
    print(f"quire worker: {error}", file=sys.stderr)


async def serve(config: WorkerConfig, status: StatusReporter) -> bool:
    """Serves until SIGTERM or SIGINT. Returns whether the step thread still runs, because it loads the model or a step
    does not end. Raises ModelError if the model cannot be loaded, OSError if a port is taken, and ConfigError if
    Redis cannot be used as the options say. Raises StepThreadError if the step thread dies and DeviceLostError if the
    device is lost, even if this happens during shutdown."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    clock = StartClock(status.starting)

    def load() -> LoadedWorker:
        check_start(config)
        from services.worker.startup import load_worker, resolve_device

        device = resolve_device(config.device)
        warn_of_options(config, device.type, status)
        try:
            return load_worker(config, clock.report, device)
        finally:
            clock.end()

    registry = Registry(config, advertise=config.advertise)
    steps = StepThread(load, StepLog(Path(config.step_log)) if config.step_log else None)
    ended = _event_of(steps.ended)
    servicer = WorkerServicer(steps)
    server = GrpcServer([SERVICE])
    server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, servicer)
    clock.report(Phase.START)
    metrics = _serve_metrics(config, steps, clock, registry)
    addresses = await server.start(config.listen)
    steps.start()
    try:
        loaded = asyncio.ensure_future(asyncio.wrap_future(steps.loaded))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait((loaded, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            worker = loaded.result()
            servicer.open(worker)
            if metrics is not None and worker.runner.ops.device.type == "cuda":
                from services.worker.gpu_metrics import GpuCollector

                device = worker.runner.ops.device
                metrics.add(GpuCollector(device, worker.model.names[0], config.model_version))
            await server.set_serving(True)
            tell_model(worker.model.names[0], worker.model.config, status)
            limits = worker.runner.limits
            if limits.has_kv_cache:
                tell_blocks(limits, worker.runner.ops.device.type, status)
            settle_garbage()
            kv_tokens = limits.num_blocks * limits.block_size if limits.has_kv_cache else 0
            registry.join(Kind.WORKER, addresses, model=worker.model.names[0], kv_tokens=kv_tokens)
            status.ready(
                "" if worker.fallback is None else f"ready, but {worker.fallback}",
                address=",".join(addresses),
                model=worker.model.names[0],
                device=str(worker.runner.ops.device),
                dtype=worker.model.dtype,
                kv_tokens=str(limits.num_blocks * limits.block_size),
                max_model_len=str(limits.max_model_len),
                **({} if metrics is None else {"metrics": metrics.address}),
            )
            await watch(steps, server, stop, ended)
    finally:
        # The drain does not wait for Redis.
        await asyncio.gather(registry.leave(), drain(steps, server, servicer, ended, config.drain_timeout))
        await registry.close()
    raise_death(steps)
    return steps.runs


def _serve_metrics(
    config: WorkerConfig, steps: StepThread, clock: StartClock, registry: Registry
) -> WorkerMetrics | None:
    if config.metrics_port is None:
        return None
    from services.worker.metrics import WorkerMetrics

    return WorkerMetrics.serve(steps, clock, registry, config.metrics_host, config.metrics_port)


def raise_death(steps: StepThread) -> None:
    """If the step thread died of an error, raises this error if it is a DeviceLostError, and StepThreadError if not."""
    died_of = steps.ended.exception() if steps.ended.done() else None
    if isinstance(died_of, DeviceLostError):
        raise died_of
    if died_of is not None:
        raise StepThreadError(f"the thread that runs the steps has died of {died_of!r}") from died_of


async def watch(steps: StepThread, server: GrpcServer, stop: asyncio.Event, ended: asyncio.Event) -> None:
    """Updates the health status until `stop` is set: neither serving nor live while a step is late, both again once
    the step ends. If the step thread dies, raises the same errors as `raise_death`. `ended` must be set when the step
    thread has ended."""
    healthy = True
    while not stop.is_set():
        await _first_of(stop, ended, within_s=WATCH_INTERVAL_S)
        raise_death(steps)
        if healthy is steps.is_late():
            healthy = not healthy
            if healthy:
                logger.info("steps end again")
            else:
                logger.error("a step has run for %.1f s and is late", steps.busy_for())
            await server.set_serving(healthy)
            await server.set_live(healthy)


async def drain(
    steps: StepThread, server: GrpcServer, servicer: WorkerServicer, ended: asyncio.Event, timeout_s: float
) -> None:
    """Refuses new claims and waits up to `timeout_s` until the owner has moved its sequences away. Then waits up to
    DRAIN_S for running steps to end, but not for a model that is being loaded. If the step thread has died, cuts the
    streams at once, because no step can end, and schedulers should move their sequences to other workers."""
    await server.set_serving(False)
    leaving = asyncio.ensure_future(servicer.drain())
    died = asyncio.ensure_future(ended.wait())
    await asyncio.wait((leaving, died), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    await servicer.close()
    drained = asyncio.ensure_future(server.stop(DRAIN_S))
    await asyncio.wait((drained, died), return_when=asyncio.FIRST_COMPLETED)
    died.cancel()
    if not drained.done():
        await server.stop(0)
    await drained
    if steps.loaded.done():
        await asyncio.to_thread(steps.stop, DRAIN_S)


async def _first_of(*events: asyncio.Event, within_s: float) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _event_of(future: Future[None]) -> asyncio.Event:
    """Returns an event that is set once `future` is done. The future's thread can outlive the event loop; the event is
    then never set."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()

    def tell(_: Future[None]) -> None:
        with suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(event.set)

    future.add_done_callback(tell)
    return event
