"""The stream to one worker, for plans and their results."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from enum import Enum, auto

import grpc

from quire.inference.v1 import model_pb2
from quire.worker.v1 import worker_pb2
from services.scheduler.converters import WorkerHello, hello_from_proto, plan_to_proto
from services.scheduler.core import Preparation, StepPlan
from services.scheduler.worker_groups.balance import Claimant
from services.scheduler.worker_request import WorkerRequestT
from shared.grpc_server import STALLED_PEER_S
from shared.message_parts import PartJoiner, in_parts
from shared.patience import Patience
from shared.release import IncompatibleReleaseError, check_release, own_release
from shared.transport import ClientStream, Connect, GrpcChannel, Method, StreamEndedError

# A heartbeat is sent if the worker was sent nothing else for this number of seconds. A worker drops a scheduler that is
# silent for five times as long, or longer if the scheduler has been slow lately.
HEARTBEAT_S = 0.4

_SERVICE = "/quire.worker.v1.WorkerService/"
RUN = Method(_SERVICE + "Run", worker_pb2.RunRequest, worker_pb2.RunResponse)
GET_TOKENIZER = Method(_SERVICE + "GetTokenizer", model_pb2.GetTokenizerRequest, model_pb2.GetTokenizerResponse)


WorkerMessage = worker_pb2.StepResult | worker_pb2.GrammarPrepared | worker_pb2.Contender | worker_pb2.Drain

# Statuses with which the stream ends if the worker says goodbye, or if this side has ended the stream.
_GOODBYES = (grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


class Loss(Enum):
    """What the loss of a worker says about the sequences that it was computing."""

    # The worker said goodbye, or this side has ended the stream.
    PLANNED = auto()
    # The connection broke. Either the worker's process exited, perhaps because of a sequence, or the network failed.
    BROKEN = auto()
    # The worker reported an error or sent an invalid message, perhaps because of a sequence.
    FAILED = auto()


class WorkerLostError(Exception):
    """The stream to the worker ended, or could not be opened. The worker's KV cache and steps in flight are lost."""

    def __init__(self, message: str, loss: Loss = Loss.PLANNED) -> None:
        super().__init__(message)
        self.loss = loss


class WorkerHeldError(WorkerLostError):
    """Another scheduler holds the worker. `boot_id`: of the worker's process; None if the worker did not tell."""

    def __init__(self, message: str, boot_id: int | None) -> None:
        super().__init__(message)
        self.boot_id = boot_id


class UnsuitableWorkerError(WorkerLostError):
    """The worker's release cannot work with this scheduler's."""


class WorkerLink:
    """The stream to a claimed worker. Results come in the order of the plans. Create a link with `claim`."""

    def __init__(self, address: str, connect: Connect) -> None:
        self._address = address
        self._channel = connect(address)
        # The queue needs no limit, because it holds at most the plans in flight, the grammars that the worker has not
        # compiled yet, and the answer to one contender.
        self._outbox: asyncio.Queue[worker_pb2.RunRequest] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None
        self._is_cancelled = False
        # Of a worker that has refused the claim.
        self._boot_id: int | None = None
        self.hello: WorkerHello

    @classmethod
    async def claim(
        cls, address: str, claimant: Claimant, timeout_s: float, connect: Connect = GrpcChannel
    ) -> WorkerLink:
        """Claims the worker at `address`. Raises WorkerHeldError if another scheduler holds it, and WorkerLostError if
        the worker cannot be reached, is not ready, or does not answer within `timeout_s` seconds.
        """
        link = cls(address, connect)
        try:
            async with Patience(timeout_s):
                await link._open(claimant)
        except BaseException as error:
            await link.close()
            if isinstance(error, TimeoutError):
                raise WorkerLostError(f"worker {address} did not answer within {timeout_s:g} s") from None
            if isinstance(error, StreamEndedError):
                message = f"worker {address}: {error.details}"
                if error.code is grpc.StatusCode.FAILED_PRECONDITION:
                    raise WorkerHeldError(message, link._boot_id) from error
                is_unsuitable = error.code is grpc.StatusCode.UNIMPLEMENTED
                raise (UnsuitableWorkerError if is_unsuitable else WorkerLostError)(message) from error
            raise
        return link

    async def _open(self, claimant: Claimant) -> None:
        self._stream: ClientStream[worker_pb2.RunRequest, worker_pb2.RunResponse] = self._channel.open(RUN)
        claim = worker_pb2.Claim(
            scheduler_id=claimant.scheduler_id,
            num_groups=claimant.num_groups,
            asks_owner=claimant.asks_owner,
            model=claimant.model,
            model_version=claimant.model_version,
            release=own_release(),
            heartbeat_s=HEARTBEAT_S,
            wants_refused=True,
        )
        await self._stream.write(worker_pb2.RunRequest(claim=claim))
        response = await self._stream.read()
        if response.HasField("refused"):
            self._boot_id = response.refused.boot_id
            response = await self._stream.read()  # raises the reason
        if not response.HasField("hello"):
            raise WorkerLostError(f"worker {self._address} answered the claim with another message than its hello")
        try:
            check_release(response.hello, "the worker")
        except IncompatibleReleaseError as error:
            raise UnsuitableWorkerError(f"worker {self._address} cannot be used: {error}") from None
        self.hello = hello_from_proto(response.hello)
        self._writer = asyncio.create_task(self._write())

    def send(self, plan: StepPlan[WorkerRequestT], late_after_s: float) -> None:
        """Hands a plan to the writer; does not wait. `late_after_s`: seconds without a result after which the worker is
        given up."""
        self._outbox.put_nowait(worker_pb2.RunRequest(plan=plan_to_proto(plan, self.hello.epoch, late_after_s)))

    def prepare(self, preparation: Preparation) -> None:
        """Asks the worker to compile a grammar; does not wait."""
        output = preparation.output_token_ids
        request = worker_pb2.PrepareGrammar(
            key=preparation.key,
            grammar=preparation.source,
            output_token_ids=None if output is None else output.tobytes(),
        )
        self._outbox.put_nowait(worker_pb2.RunRequest(prepare=request))

    @property
    def num_queued(self) -> int:
        """Number of messages that wait to be sent."""
        return self._outbox.qsize()

    def keep(self) -> None:
        """Answers a contender that this scheduler keeps the worker; does not wait."""
        self._outbox.put_nowait(worker_pb2.RunRequest(keep=worker_pb2.KeepWorker()))

    async def results(self) -> AsyncIterator[WorkerMessage]:
        """Yields the worker's messages. Raises WorkerLostError when the stream ends, for any reason."""
        try:
            joiner = PartJoiner[worker_pb2.RunResponse]()
            while True:
                response = joiner.add(await self._stream.read())
                if response is None:
                    continue
                match response.WhichOneof("message"):
                    case "result":
                        yield response.result
                    case "prepared":
                        yield response.prepared
                    case "contender":
                        yield response.contender
                    case "drain":
                        yield response.drain
                    case _:  # a message that only later versions understand
                        continue
        except ValueError as error:
            reason = f"worker {self._address} sent an invalid message: {error}"
            raise WorkerLostError(reason, Loss.FAILED) from None
        except StreamEndedError as error:
            if self._is_cancelled:
                reason = f"worker {self._address} was dropped: this scheduler ended its stream"
                raise WorkerLostError(reason) from None
            raise WorkerLostError(f"worker {self._address}: {error}", _loss(error.code)) from error

    async def tokenizer_chunks(self) -> AsyncIterator[bytes]:
        """Yields the serialized TokenizerBundle, in pieces. Raises WorkerLostError."""
        try:
            async for response in self._channel.replies(GET_TOKENIZER, model_pb2.GetTokenizerRequest()):
                yield response.chunk
        except StreamEndedError as error:
            raise WorkerLostError(f"worker {self._address}: {error}") from error

    def cancel(self) -> None:
        """Ends the stream; `results` then raises WorkerLostError."""
        self._is_cancelled = True
        self._stream.cancel()

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
        await self._channel.close()

    async def _write(self) -> None:
        """Writes the queued messages and heartbeats to the stream; no other code writes to it after the claim. If a
        write fails, `results` raises an error with the reason. If a write takes longer than STALLED_PEER_S, ends the
        stream: the worker is stalled, because a healthy worker always has room for the few plans in flight.
        """
        with contextlib.suppress(StreamEndedError):
            while True:
                request = await self._next_request()
                try:
                    for part in in_parts(request):
                        async with Patience(STALLED_PEER_S):
                            await self._stream.write(part)
                except TimeoutError:
                    self.cancel()

    async def _next_request(self) -> worker_pb2.RunRequest:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                return await self._outbox.get()
        except TimeoutError:
            return worker_pb2.RunRequest(heartbeat=worker_pb2.Heartbeat())


def _loss(code: grpc.StatusCode) -> Loss:
    """Returns what the status at the end of a stream says about the sequences."""
    if code in _GOODBYES:
        return Loss.PLANNED
    return Loss.BROKEN if code is grpc.StatusCode.UNAVAILABLE else Loss.FAILED
