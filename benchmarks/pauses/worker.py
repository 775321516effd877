"""`python -m benchmarks.pauses.worker ADDRESS TOKEN_ID MAX_NUM_SEQS PLANS`: a fake worker whose steps take as long as a
GPU's might, and whose tokens say which worker has sampled them.

PLANS: file to which it adds a line for each sequence that is new to it: the time at which it began the step whose plan
has the sequence, in monotonic seconds, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import grpc
import numpy as np

from quire.worker.v1 import worker_pb2
from services.worker.service.owner_messages import Stream
from tests.fakes.counting_model import CountingModel
from tests.fakes.fake_model import FakeModel
from tests.fakes.fake_worker import FakeWorker, start_fake_worker
from tests.integration.router.fake_scheduler import bundle_of
from tests.integration.router.small_tokenizers import byte_level, tokenizer_config

# Duration of a step, and of each token in it.
STEP_S = 0.02
TOKEN_S = 0.00005


class MarkedModel(CountingModel):
    """Samples one token only."""

    def __init__(self, token_id: int, max_num_seqs: int) -> None:
        super().__init__(max_num_seqs=max_num_seqs)
        self._token_id = token_id

    def step(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        result = super().step(plan)
        result.token_ids = np.full(len(result.token_ids) // 4, self._token_id, np.uint32).tobytes()
        return result


class Arrivals:
    """A scheduler's stream, read ahead to know when each message came. `taken_at`: when the message that was
    read last came, in monotonic seconds."""

    def __init__(self, stream: Stream) -> None:
        self.taken_at = 0.0
        self._stream = stream
        # At most as long as the scheduler runs ahead. None, or an error, ends the stream.
        self._messages: asyncio.Queue[tuple[float, worker_pb2.RunRequest | Exception | None]] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read_ahead())

    async def _read_ahead(self) -> None:
        message: worker_pb2.RunRequest | Exception | None = None
        while True:
            try:
                message = await self._stream.read()
            except Exception as error:
                message = error
            self._messages.put_nowait((time.monotonic(), message))
            if not isinstance(message, worker_pb2.RunRequest):
                return

    async def read(self) -> worker_pb2.RunRequest | None:
        self.taken_at, message = await self._messages.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def write(self, message: worker_pb2.RunResponse, /) -> None:
        await self._stream.write(message)

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        await self._stream.abort(code, details)

    def close(self) -> None:
        self._reading.cancel()


# Of the scheduler that the present task serves.
_arrivals: ContextVar[Arrivals] = ContextVar("arrivals")


@dataclass
class PacedWorker(FakeWorker):
    plans: Path = Path(os.devnull)

    async def serve(self, stream: Stream) -> None:
        arrivals = Arrivals(stream)
        _arrivals.set(arrivals)
        try:
            await super().serve(arrivals)
        finally:
            arrivals.close()

    async def _step(
        self, model: FakeModel | CountingModel, plan: worker_pb2.StepPlan, stream: Stream
    ) -> worker_pb2.StepResult:
        now = time.monotonic()
        if plan.new_sequences:
            with self.plans.open("a") as file:
                file.write(f"{now}\n" * len(plan.new_sequences))
        num_tokens = int(np.frombuffer(plan.rows.num_scheduled_tokens, "<u4").sum())
        self.script.step_seconds = STEP_S + TOKEN_S * num_tokens
        result = await super()._step(model, plan, stream)
        # The scheduler learns from them how long steps take, and how many plans to send ahead.
        result.timings.queue_us = round(1e6 * (now - _arrivals.get().taken_at))
        result.timings.run_us = round(1e6 * self.script.step_seconds)
        return result


async def serve(address: str, token_id: int, max_num_seqs: int, plans: Path) -> None:
    bundle, _ = bundle_of(byte_level().to_str(), json.dumps(tokenizer_config()))
    worker = PacedWorker(
        make_model=lambda: MarkedModel(token_id, max_num_seqs),
        max_model_len=8192,
        tokenizer_bundle=bundle,
        # Tells an exit from a cut connection.
        boot_id=secrets.randbits(63) + 1,
        plans=plans,
    )
    server = await start_fake_worker(worker, address)
    await server.server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
