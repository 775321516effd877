"""Measures the throughput with one or two routers, one or two schedulers, and one, two or four fake workers, and the
CPU time per request of each service.

A step of a fake worker takes as long as a GPU's might, and holds 16 sequences. So workers do not compete for this
host's cores; routers, schedulers and clients do.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from itertools import cycle, product

import grpc

from benchmarks.pauses.fleet import Fleet, Process, Shape, running_fleet
from benchmarks.pauses.streams import Stream, random_prompt
from benchmarks.router import processor_seconds
from quire.inference.v1 import inference_pb2_grpc

# A scheduler without a worker has nothing to do.
SHAPES = tuple(
    Shape(routers, schedulers, workers, max_num_seqs=16)
    for workers, schedulers, routers in product((1, 2, 4), (1, 2), (1, 2))
    if schedulers <= workers
)
NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS = 64, 32
# Enough for four workers, and some that wait.
NUM_CLIENTS = 80
WARM_UP_S = 2.0


async def rates(fleet: Fleet, seconds: float) -> dict[str, float]:
    """Sends one request after another from each client. Returns requests per second, and milliseconds of CPU time per
    request by service."""
    num_ended = 0

    async def client(stub: inference_pb2_grpc.InferenceServiceAsyncStub) -> None:
        nonlocal num_ended
        while True:
            await Stream().run(stub, random_prompt(NUM_PROMPT_TOKENS), NUM_OUTPUT_TOKENS)
            num_ended += 1

    services: dict[str, list[Process]] = {
        "router": fleet.routers, "scheduler": fleet.schedulers, "worker": fleet.workers,
    }  # fmt: skip

    def spent() -> dict[str, float]:
        of_parts = {name: sum(processor_seconds(one.pid) for one in parts) for name, parts in services.items()}
        return of_parts | {"client": time.process_time()}

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        stubs: list[inference_pb2_grpc.InferenceServiceAsyncStub] = []
        for router in fleet.routers:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(router.address))
            stubs.append(inference_pb2_grpc.InferenceServiceStub(channel))
        clients = [group.create_task(client(stub)) for _, stub in zip(range(NUM_CLIENTS), cycle(stubs), strict=False)]
        await asyncio.sleep(WARM_UP_S)
        before, start, first = spent(), time.monotonic(), num_ended
        await asyncio.sleep(seconds)
        after, elapsed, number = spent(), time.monotonic() - start, num_ended - first
        for task in clients:
            task.cancel()
    figures = {"requests_per_s": number / elapsed, "tokens_per_s": NUM_OUTPUT_TOKENS * number / elapsed}
    return figures | {f"{name}_ms_per_request": 1e3 * (after[name] - before[name]) / number for name in after}


def measure(seconds: float = 8.0) -> dict[str, float]:
    figures: dict[str, float] = {}
    for shape in SHAPES:
        with running_fleet(shape) as fleet:
            found = asyncio.run(rates(fleet, seconds))
        name = f"{shape.routers}_{shape.schedulers}_{shape.workers}"
        figures |= {f"{name}_{key}": value for key, value in found.items()}
    return figures
