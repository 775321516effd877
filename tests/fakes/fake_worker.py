"""A worker process without a model: WorkerService over FakeModel, with scripted delays and faults."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc

from quire.inference.v1 import model_pb2, pooling_pb2
from quire.worker.v1 import worker_pb2, worker_pb2_grpc
from services.worker.service.owner_messages import OwnerMessages, OwnerSilentError, Stream
from services.worker.service.ownership import ClaimRefusedError, Ownership, check_model
from shared.grpc_server import GrpcServer
from shared.malformed import MalformedRequestError
from shared.message_parts import PartJoiner, in_parts
from shared.patience import Patience
from shared.pulse import Pulse
from shared.transport import GrpcServerStream
from tests.fakes.counting_model import CountingModel
from tests.fakes.fake_model import EOS_TOKEN_ID, VOCAB_SIZE, ContractError, FakeModel

Context = grpc.aio.ServicerContext[Any, Any]

# As in a real worker: seconds until a claim must arrive, and until an owner that reads nothing has lost the worker.
CLAIM_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 2.0


@dataclass
class Script:
    """The worker's faults and delays. Steps count from 1 in each epoch."""

    step_seconds: float = 0.0
    # The stream breaks instead of returning this step's result, once.
    die_at_step: int | None = None
    # Number of times that the connection is cut instead of returning a step's result.
    num_cuts: int = 0
    # The worker never answers this step.
    hang_at_step: int | None = None
    # Sequences whose prompt starts with this token fail in their first step.
    poison_token_id: int | None = None
    # The stream breaks at a step with a new sequence whose prompt starts with this token.
    deadly_token_id: int | None = None
    # This grammar cannot be compiled.
    bad_grammar: str | None = None
    # Number of times that the stream breaks instead of returning GrammarPrepared.
    num_deaths_preparing: int = 0
    # The stream breaks at each PrepareGrammar for this grammar.
    deadly_grammar: str | None = None
    # PrepareGrammar, and every message after it, waits until this event is set.
    preparation_gate: asyncio.Event | None = None
    # Acquired before each step's result is sent.
    gate: asyncio.Semaphore | None = None


@dataclass
class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Serves one scheduler at a time, as the contract requires."""

    make_model: Callable[[], FakeModel | CountingModel] = FakeModel
    script: Script = field(default_factory=Script)
    max_model_len: int = 128
    tokenizer_bundle: bytes = b""
    embedding: pooling_pb2.EmbeddingInfo | None = None
    is_encoder: bool = False
    version: str = ""
    steps: int = 0
    epoch: int = 0
    # Models of all claimants so far, by name.
    claimed_for: list[str] = field(default_factory=list)
    # Grammars of all PrepareGrammar messages so far.
    grammars: list[str] = field(default_factory=list)
    heartbeat: asyncio.Event = field(default_factory=asyncio.Event)
    # Of the process that it stands for.
    boot_id: int = 1

    def __post_init__(self) -> None:
        self.ownership = Ownership()
        self.pulse = Pulse()

    async def Run(  # type: ignore[override] # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.RunRequest], context: Context
    ) -> None:
        await self.serve(GrpcServerStream(request_iterator, context))

    async def drain(self) -> None:
        """Refuses new claims, tells the owner, and waits until it has left."""
        await self.ownership.drain()

    async def serve(self, stream: Stream) -> None:
        """Serves a scheduler's stream until it ends, as a real worker does."""
        try:
            async with Patience(CLAIM_TIMEOUT_S):
                first = await stream.read()
        except TimeoutError:
            await stream.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no claim arrived in time")
        if first is None or not first.HasField("claim"):
            raise MalformedRequestError("the first message of a stream must be a claim")
        self.claimed_for.append(first.claim.model)
        info = self.hello(self.make_model(), self.epoch).model
        try:
            check_model(first.claim, info.name, info.version)
            await self.ownership.take(first.claim)
        except ClaimRefusedError as error:
            if first.claim.wants_refused:
                await _write(stream, worker_pb2.RunResponse(refused=worker_pb2.Refused(boot_id=self.boot_id)))
            await stream.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        news: asyncio.Queue[worker_pb2.RunResponse] = asyncio.Queue()
        telling: asyncio.Task[None] | None = None
        try:
            model = self.make_model()
            self.epoch += 1
            stream = _Locked(stream)
            if first.claim.HasField("num_groups"):
                self.ownership.attach(news.put_nowait)
            await _write(stream, worker_pb2.RunResponse(hello=self.hello(model, self.epoch)))
            if first.claim.HasField("num_groups"):
                telling = asyncio.create_task(_tell(stream, news))
            await self._run_epoch(stream, OwnerMessages(stream, self.pulse, first.claim), model)
        except OwnerSilentError as error:
            await stream.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
        finally:
            if telling is not None:
                telling.cancel()
            self.ownership.leave()
            self.ownership.release()

    async def _run_epoch(self, stream: Stream, messages: OwnerMessages, model: FakeModel | CountingModel) -> None:
        step_id = 0
        joiner = PartJoiner[worker_pb2.RunRequest]()
        while (received := await messages.next()) is not None:
            request = joiner.add(received)
            if request is None:
                continue
            if request.HasField("heartbeat"):
                self.heartbeat.set()
            elif request.HasField("prepare"):
                await self._prepare(request.prepare, stream)
            elif request.HasField("keep"):
                self.ownership.keep()
            else:
                step_id += 1
                if (request.plan.epoch, request.plan.step_id) != (self.epoch, step_id):
                    was = f"epoch {request.plan.epoch}, step {request.plan.step_id}"
                    expected = f"a plan is for {was}, not for epoch {self.epoch}, step {step_id}"
                    await stream.abort(grpc.StatusCode.INVALID_ARGUMENT, expected)
                for sequence in request.plan.new_sequences:
                    assert sequence.constraints.grammar in ("", *self.grammars), "planned before it was prepared"
                result = await self._step(model, request.plan, stream)
                await _write(stream, worker_pb2.RunResponse(result=result))

    async def _prepare(self, request: worker_pb2.PrepareGrammar, stream: Stream) -> None:
        self.grammars.append(request.grammar)
        is_deadly = request.grammar == self.script.deadly_grammar
        if is_deadly or self.script.num_deaths_preparing:
            self.script.num_deaths_preparing -= not is_deadly
            await self._die(stream)
        if self.script.preparation_gate is not None:
            await self.script.preparation_gate.wait()
        error = "" if request.grammar != self.script.bad_grammar else "This grammar is bad."
        await _write(stream, worker_pb2.RunResponse(prepared=worker_pb2.GrammarPrepared(key=request.key, error=error)))

    async def GetTokenizer(  # noqa: N802
        self, request: model_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        for start in range(0, len(self.tokenizer_bundle), 512 * 1024):
            yield model_pb2.GetTokenizerResponse(chunk=self.tokenizer_bundle[start : start + 512 * 1024])

    async def _step(
        self, model: FakeModel | CountingModel, plan: worker_pb2.StepPlan, stream: Stream
    ) -> worker_pb2.StepResult:
        self.steps += 1
        script = self.script
        if script.die_at_step == plan.step_id:
            script.die_at_step = None
            await self._die(stream)
        if script.num_cuts:
            script.num_cuts -= 1
            await stream.abort(grpc.StatusCode.UNAVAILABLE, "scripted cut")
        firsts = {int.from_bytes(new.token_ids[:4], "little") for new in plan.new_sequences}
        if script.deadly_token_id in firsts:
            await self._die(stream)
        if script.hang_at_step == plan.step_id:
            script.hang_at_step = None
            await asyncio.Event().wait()
        if script.step_seconds:
            await asyncio.sleep(script.step_seconds)
        if script.gate is not None:
            await script.gate.acquire()
        try:
            result = model.step(plan)
        except ContractError as error:
            await stream.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        for new in plan.new_sequences:
            if script.poison_token_id == int.from_bytes(new.token_ids[:4], "little"):
                fail(result, new.wire_id)
        return result

    async def _die(self, stream: Stream) -> NoReturn:
        """Ends the stream as the kernel does for a process that has died. Another process takes its place."""
        self.boot_id += 1
        await stream.abort(grpc.StatusCode.UNAVAILABLE, "scripted death")

    def hello(self, model: FakeModel | CountingModel, epoch: int) -> worker_pb2.Hello:
        return worker_pb2.Hello(
            boot_id=self.boot_id,
            epoch=epoch,
            model=model_pb2.ModelInfo(
                name="fake",
                embedding=self.embedding,
                is_encoder=self.is_encoder,
                max_model_len=self.max_model_len,
                vocab_size=VOCAB_SIZE,
                eos_token_ids=[EOS_TOKEN_ID],
                tokenizer_sha256=hashlib.sha256(self.tokenizer_bundle).hexdigest() if self.tokenizer_bundle else "",
                tokenizer_bytes=len(self.tokenizer_bundle),
                architecture="Fake",
                dtype="none",
                version=self.version,
            ),
            num_blocks=model.num_blocks,
            block_size=model.block_size,
            max_num_seqs=model.max_num_seqs,
            max_num_batched_tokens=model.max_num_batched_tokens,
            num_host_blocks=model.num_host_blocks,
        )


class _Locked:
    """A stream to which several tasks may write."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._writing = asyncio.Lock()

    async def read(self) -> worker_pb2.RunRequest | None:
        return await self._stream.read()

    async def write(self, message: worker_pb2.RunResponse, /) -> None:
        async with self._writing:
            await self._stream.write(message)

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        await self._stream.abort(code, details)


async def _tell(stream: Stream, news: asyncio.Queue[worker_pb2.RunResponse]) -> None:
    while True:
        await stream.write(await news.get())


async def _write(stream: Stream, message: worker_pb2.RunResponse) -> None:
    for part in in_parts(message):
        async with Patience(WRITE_TIMEOUT_S):
            await stream.write(part)


def fail(result: worker_pb2.StepResult, wire_id: int, *, needs_own_grammar: bool = False) -> None:
    """Replaces the sequence's token in `result` by an error."""
    wire_ids, token_ids = array("I", result.wire_ids), array("I", result.token_ids)
    if wire_id in wire_ids:
        row = wire_ids.index(wire_id)
        del wire_ids[row], token_ids[row]
        result.wire_ids, result.token_ids = wire_ids.tobytes(), token_ids.tobytes()
    result.errors.add(wire_id=wire_id, message="scripted failure", needs_own_grammar=needs_own_grammar)


async def start_fake_worker(worker: FakeWorker, address: str) -> GrpcServer:
    server = GrpcServer(["quire.worker.v1.WorkerService"])
    server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, worker)
    await server.start([address])
    await server.set_serving(True)
    return server


async def main() -> None:
    """Runs a worker for benchmarks that answers at once: `python -m tests.fakes.fake_worker ADDRESS`."""
    worker = FakeWorker(make_model=CountingModel, max_model_len=65_536)
    server = await start_fake_worker(worker, sys.argv[1])
    await server.server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
