"""A scheduler without a model: the contract of scheduler.proto over real gRPC, with scripted answers and faults.

What a request is answered with is a function of it alone (`Script`), so that a resubmission anywhere goes on with the
same tokens. It shows what a router may rely on, and records everything the router sends.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from quire.inference.v1 import model_pb2, release_pb2, sampling_pb2
from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.fakes.waiting import HANG_S


def pack(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def unpack(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}I", data))


@dataclass(slots=True)
class Answer:
    """What one choice is answered with, from its first token on, whatever attempt this is."""

    token_ids: list[int]
    reason: sampling_pb2.FinishReason.ValueType = sampling_pb2.FINISH_REASON_STOP
    error: scheduler_pb2.Error | None = None
    num_cached_tokens: int = 4
    queue_us: int | None = None
    tokens_per_frame: int = 1
    # Tokens after which the sequence says nothing more until `resume` is set.
    pause_after: int | None = None
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    # Of a sequence that is pooled: its one result, which `pause_after` = 0 holds back.
    embedding: bytes = b""


Script = Callable[[scheduler_pb2.Submit, scheduler_pb2.Choice], Answer]


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    def __init__(
        self, model: model_pb2.ModelInfo, bundle: bytes, script: Script, *, load_interval: float = 0.1
    ) -> None:
        self.model = model
        self.bundle = bundle
        self.script = script
        self.submits: list[scheduler_pb2.Submit] = []
        self.aborted: list[int] = []
        self.num_connects = 0
        self.num_cache_resets = 0
        self.num_tokenizer_calls = 0
        self.load = scheduler_pb2.Load(
            num_running=3, num_waiting=2, num_used_blocks=25, num_blocks=100, block_size=16,
            num_used_host_blocks=3, num_host_blocks=4, num_scheduled_tokens=40,
            num_steps_by_tokens=[4, 1, 0, 1, *[0] * 10], enable_prefix_caching=True,
        )  # fmt: skip
        self.silent = False
        # Takes no message of streams that begin while this is set.
        self.deaf = False
        self._load_interval = load_interval
        self._changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None
        self._outboxes: list[asyncio.Queue[scheduler_pb2.ConnectResponse | None]] = []
        self._running: dict[int, asyncio.Task[None]] = {}
        self.address = ""
        self.scheduler_id = ""
        # None: unset in the hello.
        self.model_weight: int | None = None
        self.release: release_pb2.Release | None = None

    async def start(self, address: str = "127.0.0.1:0") -> str:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self, server)
        port = server.add_insecure_port(address)
        await server.start()
        self._server = server
        self.address = f"127.0.0.1:{port}"
        self.scheduler_id = f"fake-{port}"
        return self.address

    async def stop(self) -> None:
        """As a crash looks from outside: streams break at once."""
        await self.break_streams()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def break_streams(self) -> None:
        for task in self._running.values():
            task.cancel()
        self._running.clear()
        for outbox in self._outboxes:
            outbox.put_nowait(None)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until something that the router sent makes `condition` true."""
        async with asyncio.timeout(HANG_S), self._changed:
            await self._changed.wait_for(condition)

    @property
    def num_running(self) -> int:
        return sum(not task.done() for task in self._running.values())

    async def send(self, frame: scheduler_pb2.Frame) -> None:
        """A frame of the test's own making, to every router."""
        for outbox in self._outboxes:
            outbox.put_nowait(scheduler_pb2.ConnectResponse(frame=frame))

    async def Connect(  # noqa: N802
        self, request_iterator: AsyncIterator[scheduler_pb2.ConnectRequest], context: Any
    ) -> AsyncIterator[scheduler_pb2.ConnectResponse]:
        outbox: asyncio.Queue[scheduler_pb2.ConnectResponse | None] = asyncio.Queue()
        reader = asyncio.create_task(self._read(request_iterator, outbox))
        pusher = asyncio.create_task(self._push_loads(outbox))
        self._outboxes.append(outbox)
        self.num_connects += 1
        try:
            yield scheduler_pb2.ConnectResponse(
                hello=scheduler_pb2.SchedulerHello(
                    scheduler_id=self.scheduler_id,
                    model=self.model,
                    model_weight=self.model_weight,
                    release=self.release,
                )
            )
            while (response := await outbox.get()) is not None:
                yield response
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the scripted end of this stream")
        finally:
            self._outboxes.remove(outbox)
            reader.cancel()
            pusher.cancel()

    async def GetTokenizer(  # noqa: N802
        self, request: model_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        self.num_tokenizer_calls += 1
        for start in range(0, len(self.bundle), 4096):
            yield model_pb2.GetTokenizerResponse(chunk=self.bundle[start : start + 4096])

    async def GetStats(  # noqa: N802
        self, request: scheduler_pb2.GetStatsRequest, context: Any
    ) -> scheduler_pb2.GetStatsResponse:
        return scheduler_pb2.GetStatsResponse(load=self.load)

    async def ResetPrefixCache(  # noqa: N802
        self, request: scheduler_pb2.ResetPrefixCacheRequest, context: Any
    ) -> scheduler_pb2.ResetPrefixCacheResponse:
        self.num_cache_resets += 1
        return scheduler_pb2.ResetPrefixCacheResponse()

    async def _push_loads(self, outbox: asyncio.Queue[scheduler_pb2.ConnectResponse | None]) -> None:
        while True:
            if not self.silent:
                outbox.put_nowait(scheduler_pb2.ConnectResponse(load=self.load))
            await asyncio.sleep(self._load_interval)

    async def _read(
        self,
        requests: AsyncIterator[scheduler_pb2.ConnectRequest],
        outbox: asyncio.Queue[scheduler_pb2.ConnectResponse | None],
    ) -> None:
        if self.deaf:
            await asyncio.Event().wait()
        async for request in requests:
            match request.WhichOneof("message"):
                case "submit":
                    self.submits.append(request.submit)
                    for choice in request.submit.choices:
                        run = self._run(request.submit, choice, outbox)
                        self._running[choice.sequence_id] = asyncio.create_task(run)
                case "abort":
                    ids = unpack(request.abort.sequence_ids)
                    self.aborted += ids
                    for sequence_id in ids:
                        task = self._running.pop(sequence_id, None)
                        if task is not None:
                            task.cancel()
            async with self._changed:
                self._changed.notify_all()

    async def _run(
        self,
        submit: scheduler_pb2.Submit,
        choice: scheduler_pb2.Choice,
        outbox: asyncio.Queue[scheduler_pb2.ConnectResponse | None],
    ) -> None:
        answer = self.script(submit, choice)
        position = len(choice.output_token_ids) // 4
        if submit.sampling.HasField("prompt_logprobs") and choice.choice_index == 0:
            for frame in prompt_frames(submit, choice):
                outbox.put_nowait(scheduler_pb2.ConnectResponse(frame=frame))
                await asyncio.sleep(0)
        limit = min(len(answer.token_ids), submit.stop.max_tokens)
        while position < limit:
            if answer.pause_after is not None and position >= answer.pause_after:
                await answer.resume.wait()
            end = min(limit, position + answer.tokens_per_frame)
            if answer.pause_after is not None and not answer.resume.is_set():
                end = min(end, max(answer.pause_after, position + 1))
            frame = frame_of(choice, position, answer.token_ids[position:end])
            frame.started.add(
                sequence_id=choice.sequence_id,
                attempt=choice.attempt,
                num_cached_tokens=answer.num_cached_tokens,
                queue_us=answer.queue_us,
            )
            if submit.sampling.HasField("logprobs"):
                frame.logprobs.CopyFrom(_logprobs(answer.token_ids[position:end], submit.sampling.logprobs))
            position = end
            if position == limit:
                frame.finished.append(_finished(choice, answer, position))
            outbox.put_nowait(scheduler_pb2.ConnectResponse(frame=frame))
            await asyncio.sleep(0)
        if not limit:
            if answer.pause_after is not None:
                await answer.resume.wait()
            outbox.put_nowait(
                scheduler_pb2.ConnectResponse(frame=scheduler_pb2.Frame(finished=[_finished(choice, answer, 0)]))
            )


def frame_of(choice: scheduler_pb2.Choice, first_output_index: int, token_ids: Sequence[int]) -> scheduler_pb2.Frame:
    """A frame with one row."""
    return scheduler_pb2.Frame(
        sequence_ids=pack([choice.sequence_id]),
        attempts=pack([choice.attempt]),
        first_output_indices=pack([first_output_index]),
        token_offsets=pack([0, len(token_ids)]),
        token_ids=pack(token_ids),
    )


def _finished(choice: scheduler_pb2.Choice, answer: Answer, position: int) -> scheduler_pb2.Finished:
    reason = answer.reason
    if answer.error is not None:
        reason = sampling_pb2.FINISH_REASON_ERROR
    elif position < len(answer.token_ids):
        reason = sampling_pb2.FINISH_REASON_LENGTH
    return scheduler_pb2.Finished(
        sequence_id=choice.sequence_id,
        attempt=choice.attempt,
        reason=reason,
        error=answer.error,
        embedding=answer.embedding,
    )


def _logprobs(token_ids: Sequence[int], num_top: int) -> sampling_pb2.TokenLogprobs:
    top_ids = [token_id + rank for token_id in token_ids for rank in range(num_top)]
    top = [-0.5 - rank for _ in token_ids for rank in range(num_top)]
    return sampling_pb2.TokenLogprobs(
        token_indices=pack(range(len(token_ids))),
        logprobs=struct.pack(f"<{len(token_ids)}f", *([-0.5] * len(token_ids))),
        top_counts=pack([num_top] * len(token_ids)),
        top_token_ids=pack(top_ids),
        top_logprobs=struct.pack(f"<{len(top)}f", *top),
    )


def prompt_frames(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Iterator[scheduler_pb2.Frame]:
    """What is missing of the prompt's log probabilities, two tokens at a time: -t/100 for token t, of rank t, and t + 1
    and so on as the likeliest."""
    prompt, top = unpack(submit.prompt_token_ids), submit.sampling.prompt_logprobs
    for first in range(1 + choice.num_prompt_logprobs, len(prompt), 2):
        token_ids = prompt[first : first + 2]
        yield scheduler_pb2.Frame(
            prompt_logprobs_attempts=pack([choice.attempt]),
            prompt_logprobs=sampling_pb2.PromptLogprobs(
                sequence_ids=pack([choice.sequence_id]),
                first_positions=pack([first]),
                offsets=pack([0, len(token_ids)]),
                logprobs=struct.pack(f"<{len(token_ids)}f", *(-token_id / 100 for token_id in token_ids)),
                ranks=pack(token_ids),
                top_counts=pack([top]),
                top_token_ids=pack([token_id + 1 + rank for token_id in token_ids for rank in range(top)]),
                top_logprobs=struct.pack(f"<{len(token_ids) * top}f", *([-0.5] * len(token_ids) * top)),
            ),
        )


def bundle_of(tokenizer_json: str, tokenizer_config_json: str) -> tuple[bytes, str]:
    """A serialized TokenizerBundle and its sha256."""
    bundle = model_pb2.TokenizerBundle(
        tokenizer_json=tokenizer_json.encode(), tokenizer_config_json=tokenizer_config_json.encode()
    ).SerializeToString()
    return bundle, hashlib.sha256(bundle).hexdigest()
