"""Measures the scheduler's steps per second with a fake worker that answers at once: planning, message conversion and
two gRPC hops. Scheduler, worker and the receiving end are one process each, as in a real deployment."""

from __future__ import annotations

import asyncio
import tempfile
import time
from array import array
from pathlib import Path

import grpc

from benchmarks.stack import command
from quire.inference.v1 import sampling_pb2
from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc


async def steps_per_second(address: str, num_sequences: int, seconds: float) -> float:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        call = stub.Connect(wait_for_ready=True)
        await call.write(scheduler_pb2.ConnectRequest(hello=scheduler_pb2.RouterHello(router_id="bench")))
        await call.read()
        for sequence_id in range(num_sequences):
            submit = scheduler_pb2.Submit(
                prompt_token_ids=array("I", range(100)).tobytes(),
                sampling=sampling_pb2.SamplingParams(temperature=0),
                stop=sampling_pb2.StopConditions(max_tokens=60_000, ignore_eos=True),
                choices=[scheduler_pb2.Choice(sequence_id=sequence_id)],
            )
            await call.write(scheduler_pb2.ConnectRequest(submit=submit))

        async def read_frames() -> None:
            while await call.read() is not grpc.aio.EOF:
                pass

        reader = asyncio.create_task(read_frames())
        await asyncio.sleep(0.5)
        before = await stub.GetStats(scheduler_pb2.GetStatsRequest())
        start = time.perf_counter()
        await asyncio.sleep(seconds)
        after = await stub.GetStats(scheduler_pb2.GetStatsRequest())
        elapsed = time.perf_counter() - start
        reader.cancel()
        call.cancel()
        assert after.load.num_running == num_sequences, "a sequence ended too early"
        return float((after.num_steps - before.num_steps) / elapsed)


def measure(seconds: float = 3.0) -> dict[str, float]:
    """Returns steps per second by number of running sequences."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory:
        worker, scheduler = f"unix:{Path(directory) / 'w'}", f"unix:{Path(directory) / 's'}"
        with (
            command("tests.fakes.fake_worker", worker),
            command("quire.cli.main", "scheduler", "--listen", scheduler, "--worker", worker),
        ):
            return {
                f"steps_per_s_{count}": asyncio.run(steps_per_second(scheduler, count, seconds))
                for count in (1, 64, 256)
            }
