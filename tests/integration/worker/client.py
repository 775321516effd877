"""A scheduler's end of the step stream, as the wire has it."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np

from quire.inference.v1 import sampling_pb2
from quire.worker.v1 import worker_pb2, worker_pb2_grpc
from shared.message_parts import PartJoiner, in_parts


def u32(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


def values(column: bytes) -> list[int]:
    return [int(value) for value in np.frombuffer(column, "<u4")]


GREEDY = sampling_pb2.SamplingParams(temperature=0.0)


def new_sequence(
    wire_id: int,
    slot: int,
    token_ids: list[int],
    block_ids: list[int],
    sampling: sampling_pb2.SamplingParams = GREEDY,
    traceparent: str = "",
) -> worker_pb2.NewSequence:
    return worker_pb2.NewSequence(
        wire_id=wire_id,
        slot=slot,
        token_ids=u32(*token_ids),
        num_prompt_tokens=len(token_ids),
        block_ids=u32(*block_ids),
        sampling=sampling,
        traceparent=traceparent,
    )


def rows(*entries: tuple[int, int, int, int], new_blocks: list[list[int]] | None = None) -> worker_pb2.Rows:
    """Entries: sequence id, slot, scheduled, computed."""
    blocks = new_blocks or [[] for _ in entries]
    columns = list(zip(*entries, strict=True))
    return worker_pb2.Rows(
        wire_ids=u32(*columns[0]),
        slots=u32(*columns[1]),
        num_scheduled_tokens=u32(*columns[2]),
        num_computed_tokens=u32(*columns[3]),
        new_block_offsets=u32(*np.cumsum([0, *map(len, blocks)]).tolist()),
        new_block_ids=u32(*[block for row in blocks for block in row]),
    )


class Stream:
    """One Run call. `claim` first, then `plan` and `result` in any interleaving."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call: Any = worker_pb2_grpc.WorkerServiceStub(channel).Run()
        self.hello = worker_pb2.Hello()
        self._step_id = 0
        self._joiner = PartJoiner[worker_pb2.RunResponse]()

    async def claim(self, scheduler_id: str = "test", **fields: Any) -> worker_pb2.Hello:
        """`fields`: more fields of the claim. Raises grpc.aio.AioRpcError if the worker refuses."""
        claim = worker_pb2.Claim(scheduler_id=scheduler_id, **fields)
        await self.call.write(worker_pb2.RunRequest(claim=claim))
        self.hello = (await self._read()).hello
        return self.hello

    async def refused(self) -> None:
        """Raises grpc.aio.AioRpcError once the worker has ended the call, which it does without reading a claim.

        If the call ended during a write, gRPC would report INTERNAL instead of the worker's status.
        """
        await self._read()

    async def contender(self) -> worker_pb2.Contender:
        return (await self._read()).contender

    async def is_told_of_drain(self) -> bool:
        return (await self._read()).HasField("drain")

    async def keep(self) -> None:
        await self.call.write(worker_pb2.RunRequest(keep=worker_pb2.KeepWorker()))

    async def plan(self, **fields: Any) -> None:
        self._step_id += 1
        plan = worker_pb2.StepPlan(**({"epoch": self.hello.epoch, "step_id": self._step_id} | fields))
        for part in in_parts(worker_pb2.RunRequest(plan=plan)):
            await self.call.write(part)

    async def result(self) -> worker_pb2.StepResult:
        return (await self._read()).result

    async def step(self, **fields: Any) -> worker_pb2.StepResult:
        await self.plan(**fields)
        return await self.result()

    async def close(self) -> None:
        """Half-closes and waits for the worker to end the call."""
        await self.call.done_writing()
        assert await self.call.read() is grpc.aio.EOF
        assert await self.call.code() is grpc.StatusCode.OK

    async def _read(self) -> worker_pb2.RunResponse:
        while True:
            message = await self.call.read()
            if message is grpc.aio.EOF:
                raise ConnectionError(f"{await self.call.code()}: {await self.call.details()}")
            assert isinstance(message, worker_pb2.RunResponse)
            whole = self._joiner.add(message)
            if whole is not None:
                return whole


async def claimed(channel: grpc.aio.Channel) -> Stream:
    """A stream that owns the worker. Another may have just let go of it, and its steps be draining."""
    while True:
        stream = Stream(channel)
        try:
            await stream.claim()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
        else:
            return stream
