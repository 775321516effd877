"""A scheduler between a router's stream, which tests drive, and scripted workers; real gRPC between them."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from quire.inference.v1 import constraints_pb2, sampling_pb2
from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.scheduler.config import SchedulerConfig
from services.scheduler.servicer import SchedulerServicer
from services.scheduler.worker_groups.claimer import Claimer
from services.scheduler.worker_groups.fleet import Fleet
from shared.discovery import Source, StaticSource
from shared.grpc_server import GrpcServer
from tests.fakes.fake_worker import FakeWorker, start_fake_worker
from tests.fakes.stack import patient
from tests.fakes.waiting import HANG_S, until


class Router:
    """The router's end of one Connect stream."""

    def __init__(self, stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub) -> None:
        self._call = stub.Connect()
        self.outputs: dict[int, list[int]] = {}
        self.started: dict[int, scheduler_pb2.Started] = {}
        self.finished: dict[int, scheduler_pb2.Finished] = {}
        self.losses: list[scheduler_pb2.WorkerLoss] = []
        self.hello: scheduler_pb2.SchedulerHello

    async def connect(self) -> None:
        await self._call.write(scheduler_pb2.ConnectRequest(hello=scheduler_pb2.RouterHello(router_id="test")))
        response = await self._call.read()
        assert isinstance(response, scheduler_pb2.ConnectResponse)
        self.hello = response.hello

    async def submit(
        self,
        sequence_id: int,
        prompt: list[int],
        max_tokens: int,
        *,
        received: list[int] | None = None,
        attempt: int = 0,
        timeout_ms: int | None = None,
        request_id: str = "",
        priority: int = 0,
        grammar: str = "",
        traceparent: str = "",
    ) -> None:
        self.outputs.setdefault(sequence_id, list(received or []))
        submit = scheduler_pb2.Submit(
            request_id=request_id,
            priority=priority,
            prompt_token_ids=array("I", prompt).tobytes(),
            sampling=sampling_pb2.SamplingParams(temperature=0),
            stop=sampling_pb2.StopConditions(max_tokens=max_tokens),
            choices=[
                scheduler_pb2.Choice(
                    sequence_id=sequence_id,
                    attempt=attempt,
                    output_token_ids=array("I", received or []).tobytes(),
                )
            ],
            timeout_ms=timeout_ms,
            traceparent=traceparent,
            constraints=constraints_pb2.TokenConstraints(grammar=grammar) if grammar else None,
        )
        await self.write(scheduler_pb2.ConnectRequest(submit=submit))

    async def write(self, request: scheduler_pb2.ConnectRequest) -> None:
        await self._call.write(request)

    async def abort(self, *sequence_ids: int) -> None:
        abort = scheduler_pb2.Abort(sequence_ids=array("I", sequence_ids).tobytes())
        await self.write(scheduler_pb2.ConnectRequest(abort=abort))

    async def read_until_finished(self, *sequence_ids: int) -> None:
        while not set(sequence_ids) <= self.finished.keys():
            await self.read()

    async def read(self) -> None:
        response = await self._call.read()
        assert isinstance(response, scheduler_pb2.ConnectResponse), "the scheduler ended the stream"
        frame = response.frame
        ids, indices = array("I", frame.sequence_ids), array("I", frame.first_output_indices)
        offsets, tokens = array("I", frame.token_offsets), array("I", frame.token_ids)
        for row, sequence_id in enumerate(ids):
            output = self.outputs[sequence_id]
            assert indices[row] == len(output), "a token is lost or doubled"
            output.extend(tokens[offsets[row] : offsets[row + 1]])
        self.started |= {started.sequence_id: started for started in frame.started}
        self.losses += frame.worker_losses
        for finished in frame.finished:
            self.finished[finished.sequence_id] = finished

    def close(self) -> None:
        self._call.cancel()


class Stack:
    def __init__(
        self,
        servicer: SchedulerServicer,
        stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub,
        fleet: Fleet,
        worker_servers: list[GrpcServer],
    ) -> None:
        self.servicer = servicer
        self.stub = stub
        self.fleet = fleet
        self.worker_servers = worker_servers

    async def router(self) -> Router:
        router = Router(self.stub)
        await router.connect()
        return router

    async def stats(self) -> scheduler_pb2.GetStatsResponse:
        return await self.stub.GetStats(scheduler_pb2.GetStatsRequest())

    async def stats_when(
        self, condition: Callable[[scheduler_pb2.GetStatsResponse], bool]
    ) -> scheduler_pb2.GetStatsResponse:
        """The first statistics that meet `condition`; however busy the machine is."""
        async with asyncio.timeout(HANG_S):
            while not condition(stats := await self.stats()):
                pass
            return stats


@asynccontextmanager
async def running(
    tmp_path: Path, *workers: FakeWorker, config: SchedulerConfig | None = None, source: Source | None = None
) -> AsyncIterator[Stack]:
    """Runs a scheduler and its workers. `source`: discovers the workers; if left out, the scheduler is given their
    addresses."""
    config = patient(config or SchedulerConfig())
    addresses = [f"unix:{tmp_path}/w{index}" for index in range(len(workers))]
    servers = [await start_fake_worker(worker, address) for worker, address in zip(workers, addresses, strict=True)]
    fleet = Fleet("scheduler-test", config)
    claimer = Claimer(fleet, source or StaticSource(addresses))
    servicer = SchedulerServicer(fleet)
    server = GrpcServer(["quire.scheduler.v1.SchedulerService"])
    server.add(scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, servicer)
    await server.start([f"unix:{tmp_path}/s"])
    tasks = [asyncio.create_task(claimer.run()), asyncio.create_task(servicer.tick_forever())]
    try:
        await until(lambda: source is not None or len(fleet.groups) == len(workers))
        async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel:
            yield Stack(servicer, scheduler_pb2_grpc.SchedulerServiceStub(channel), fleet, servers)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(server.stop(0), *(worker.stop(0) for worker in servers))
