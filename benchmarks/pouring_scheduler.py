"""A fake scheduler that takes little CPU time: `python -m benchmarks.pouring_scheduler ADDRESS STEPS_PER_S`.

Every running sequence gets STEPS_PER_S tokens per second: one token per frame, or several if the router has not yet
read the previous frame, as in a real scheduler.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import AsyncIterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from quire.inference.v1 import model_pb2, sampling_pb2
from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.worker.checkpoint.tokenizer_files import read_tokenizer
from shared.grpc_server import GrpcServer

MODEL = "quire-chat"
TOKENIZER = Path(__file__).parents[1] / "quire" / "models" / "quire-chat"
# These tokens are ordinary words and syllables.
FIRST_TOKEN, NUM_TOKENS = 300, 500
LOAD_INTERVAL_S = 0.1


class PouringScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    def __init__(self, steps_per_s: float) -> None:
        self._interval = 1 / steps_per_s
        self._tokenizer = read_tokenizer(TOKENIZER)
        self._model = model_pb2.ModelInfo(
            name=MODEL, max_model_len=1 << 20, vocab_size=2048, eos_token_ids=[0],
            tokenizer_sha256=self._tokenizer.sha256, tokenizer_bytes=len(self._tokenizer.data),
        )  # fmt: skip

    async def GetTokenizer(  # noqa: N802
        self, request: model_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        for chunk in self._tokenizer.chunks():
            yield model_pb2.GetTokenizerResponse(chunk=chunk)

    async def Connect(  # type: ignore[override]  # noqa: N802  # written to, not iterated
        self, requests: AsyncIterator[scheduler_pb2.ConnectRequest], context: Any
    ) -> None:
        await anext(aiter(requests))
        hello = scheduler_pb2.SchedulerHello(scheduler_id="pouring", model=self._model)
        await context.write(scheduler_pb2.ConnectResponse(hello=hello))
        running: dict[int, list[int]] = {}  # sequence id: tokens sent, tokens to send
        has_some = asyncio.Event()
        pouring = asyncio.create_task(self._pour(context, running, has_some))
        try:
            async for request in requests:
                if request.HasField("submit"):
                    for choice in request.submit.choices:
                        running[choice.sequence_id] = [0, request.submit.stop.max_tokens]
                elif request.HasField("abort"):
                    for sequence_id in array("I", request.abort.sequence_ids):
                        running.pop(sequence_id, None)
                has_some.set()
        finally:
            pouring.cancel()

    async def GetStats(  # noqa: N802
        self, request: scheduler_pb2.GetStatsRequest, context: Any
    ) -> scheduler_pb2.GetStatsResponse:
        return scheduler_pb2.GetStatsResponse()

    async def ResetPrefixCache(  # noqa: N802
        self, request: scheduler_pb2.ResetPrefixCacheRequest, context: Any
    ) -> scheduler_pb2.ResetPrefixCacheResponse:
        return scheduler_pb2.ResetPrefixCacheResponse()

    async def _pour(self, context: Any, running: dict[int, list[int]], has_some: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        load = scheduler_pb2.Load(num_blocks=1 << 20, block_size=16, num_ready_groups=1)
        load_due = step_due = loop.time()
        while True:
            if loop.time() >= load_due:
                await context.write(scheduler_pb2.ConnectResponse(load=load))
                load_due = loop.time() + LOAD_INTERVAL_S
            if not running:
                has_some.clear()
                with_timeout = asyncio.wait_for(has_some.wait(), max(0.0, load_due - loop.time()))
                await asyncio.gather(with_timeout, return_exceptions=True)
                step_due = loop.time()
                continue
            num_steps = 1 + max(0, int((loop.time() - step_due) / self._interval))
            await context.write(scheduler_pb2.ConnectResponse(frame=_frame(running, num_steps)))
            step_due += num_steps * self._interval
            await asyncio.sleep(max(0.0, step_due - loop.time()))


def _frame(running: dict[int, list[int]], num_steps: int) -> scheduler_pb2.Frame:
    counts = [min(num_steps, wanted - sent) for sent, wanted in running.values()]
    offsets = [0, *accumulate(counts)]
    frame = scheduler_pb2.Frame(
        sequence_ids=array("I", running).tobytes(),
        attempts=bytes(4 * len(running)),
        first_output_indices=array("I", [sent for sent, _ in running.values()]).tobytes(),
        token_offsets=array("I", offsets).tobytes(),
        token_ids=array("I", [FIRST_TOKEN + token % NUM_TOKENS for token in range(offsets[-1])]).tobytes(),
    )
    for (sequence_id, progress), count in zip(list(running.items()), counts, strict=True):
        if not progress[0]:
            frame.started.add(sequence_id=sequence_id)
        progress[0] += count
        if progress[0] >= progress[1]:
            frame.finished.add(sequence_id=sequence_id, reason=sampling_pb2.FINISH_REASON_LENGTH)
            del running[sequence_id]
    return frame


async def serve(address: str, steps_per_s: float) -> None:
    server = GrpcServer(["quire.scheduler.v1.SchedulerService"])
    server.add(scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, PouringScheduler(steps_per_s))
    await server.start([address])
    await server.set_serving(True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], float(sys.argv[2])))
