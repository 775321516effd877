"""The gRPC service of a worker: one scheduler at a time claims it, sends plans and receives results."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import grpc

from quire.inference.v1 import model_pb2
from quire.worker.v1 import worker_pb2, worker_pb2_grpc
from services.worker.errors import PlanError
from services.worker.plan import StepPlan, StepResult
from services.worker.service.converters import model_info_to_proto, plan_from_proto, result_to_proto, u32
from services.worker.service.owner_messages import OwnerMessages, OwnerSilentError, Stream
from services.worker.service.ownership import ClaimRefusedError, Ownership, check_model
from services.worker.service.step_thread import DEFAULT_LATE_AFTER_S, MAX_QUEUED_STEPS, Outcome, Recipient, StepThread
from shared.grpc_server import MAX_ID_CHARS
from shared.malformed import MalformedRequestError
from shared.message_parts import PartJoiner, in_parts
from shared.patience import Patience
from shared.pulse import Pulse
from shared.release import IncompatibleReleaseError, check_release, own_release
from shared.transport import GrpcServerStream

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from services.worker.sampling import Grammars
    from services.worker.startup import LoadedWorker

logger = logging.getLogger(__name__)

CLAIM_TIMEOUT_S = 10.0
# The worker ends the stream if the scheduler reads no message for this long.
WRITE_TIMEOUT_S = 2.0
# Maximum number of grammars that the worker prepares at a time for its owner, the scheduler that has claimed it.
MAX_PENDING_GRAMMARS = 128

# Messages that a scheduler may send after its claim.
_AFTER_CLAIM = "a plan, a heartbeat, a grammar to prepare or KeepWorker"


class WorkerClosingError(Exception):
    """The worker is shutting down. All plans received so far have run."""


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Refuses calls with UNAVAILABLE until `open` provides a loaded worker, and again after `close`."""

    def __init__(self, steps: StepThread) -> None:
        self._steps = steps
        self._worker: LoadedWorker | None = None
        self._boot_id = secrets.randbits(63) + 1
        self._epoch = 0
        self._ownership = Ownership()
        self._pulse = Pulse()
        self._draining = False
        self._closing = False
        self._reader: asyncio.Task[None] | None = None
        self._releases: set[asyncio.Task[None]] = set()

    def open(self, worker: LoadedWorker) -> None:
        self._worker = worker

    async def drain(self) -> None:
        """Refuses new claims, tells the owner, and waits until it has left. Returns at once if the owner does not
        understand Drain."""
        self._draining = True
        await self._ownership.drain()

    async def close(self) -> None:
        """Accepts no more plans, and ends the owner's stream once the results of all received plans are written."""
        self._closing = True
        if self._reader is not None:
            self._reader.cancel()

    async def Run(  # type: ignore[override]  # noqa: N802 - gRPC's name and calling style: results go to `context`
        self, request_iterator: AsyncIterator[worker_pb2.RunRequest], context: Any
    ) -> None:
        await self.serve(GrpcServerStream(request_iterator, context))

    async def serve(self, stream: Stream) -> None:
        """Serves a scheduler's stream until it ends. Raises MalformedRequestError."""
        if self._worker is None or self._draining or self._closing:
            await stream.abort(grpc.StatusCode.UNAVAILABLE, self._problem)
        worker = self._worker
        claim = await self._claim(stream)
        try:
            check_release(claim, "the scheduler")
        except IncompatibleReleaseError as error:
            logger.warning("refused scheduler %s: %s", claim.scheduler_id[:MAX_ID_CHARS], error)
            await stream.abort(grpc.StatusCode.UNIMPLEMENTED, f"refused by the worker: {error}")
        try:
            check_model(claim, worker.model.names[0], worker.model.version)
            await self._ownership.take(claim)
        except ClaimRefusedError as error:
            if claim.wants_refused:
                with contextlib.suppress(TimeoutError):
                    await _write(stream, worker_pb2.RunResponse(refused=worker_pb2.Refused(boot_id=self._boot_id)))
            await stream.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._epoch += 1
        epoch = _Epoch(self._steps, self._epoch, worker.grammars, self._ownership)
        logger.info("epoch %d: claimed by %s", self._epoch, self._ownership.owner)
        end: Exception | None
        try:
            if claim.HasField("num_groups"):
                # Before the hello is sent. A contender that came in between would be refused, and the owner not asked.
                self._ownership.attach(epoch.tell)
            await _write(stream, worker_pb2.RunResponse(hello=self._hello(worker)))
            messages = OwnerMessages(stream, self._pulse, claim)
            self._reader = asyncio.create_task(epoch.read(messages, lambda: self._closing))
            end = await epoch.write(stream)
        except TimeoutError as error:
            end = error
        finally:
            self._let_go(epoch)
        if isinstance(end, MalformedRequestError):
            raise end
        if end is not None:
            # `abort` is called after `_let_go`, because `abort` can block. gRPC sends the status only after all earlier
            # results, and a stalled scheduler does not read these results.
            await stream.abort(*_status(epoch.number, end))

    async def GetTokenizer(  # noqa: N802 - gRPC's name
        self, request: model_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        if self._worker is None or self._closing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._problem)
            raise AssertionError("abort raises")
        for chunk in self._worker.model.tokenizer.chunks():
            yield model_pb2.GetTokenizerResponse(chunk=chunk)

    @property
    def _problem(self) -> str:
        """Says why the worker takes no calls now."""
        return f"the worker is {'shutting down' if self._draining or self._closing else 'still loading its model'}"

    async def _claim(self, stream: Stream) -> worker_pb2.Claim:
        try:
            async with Patience(CLAIM_TIMEOUT_S):
                first = await stream.read()
        except TimeoutError:
            # The network may have lost it.
            await stream.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no claim arrived within {CLAIM_TIMEOUT_S:g} s")
        if first is None or first.WhichOneof("message") != "claim":
            raise MalformedRequestError("the first message of a stream must be a claim")
        return first.claim

    def _let_go(self, epoch: _Epoch) -> None:
        epoch.recipient.closed = True
        self._ownership.leave()
        if self._reader is not None:
            self._reader.cancel()
        # `_release` runs in a task of its own, because gRPC can cancel the task of `Run` at any moment.
        release = asyncio.create_task(self._release(epoch.number))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)

    async def _release(self, epoch: int) -> None:
        """Lets another scheduler claim the worker, once the epoch's steps have ended and its sequences are freed."""
        await asyncio.wrap_future(self._steps.reset())
        if self._worker is not None:
            self._worker.grammars.forget_own()
        logger.info("epoch %d: released", epoch)
        self._ownership.release()

    def _hello(self, worker: LoadedWorker) -> worker_pb2.Hello:
        limits = worker.runner.limits
        return worker_pb2.Hello(
            boot_id=self._boot_id,
            epoch=self._epoch,
            model=model_info_to_proto(worker.model),
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            num_host_blocks=limits.num_host_blocks,
            swap_seconds_per_block=worker.speed.swap_per_block,
            step_seconds=worker.speed.step,
            step_seconds_per_token=worker.speed.per_token,
            release=own_release(),
        )


class _Epoch:
    """One owner's stream. One task reads plans (`read`), the step thread runs them, and another task writes the results
    (`write`)."""

    def __init__(self, steps: StepThread, number: int, grammars: Grammars, ownership: Ownership) -> None:
        self.number = number
        self._grammars = grammars
        self._ownership = ownership
        self._num_pending_grammars = 0
        self.recipient = Recipient(self._deliver)
        self._steps = steps
        self._loop = asyncio.get_running_loop()
        # This queue needs no maximum size, because few messages can wait in it. Each step holds one of MAX_QUEUED_STEPS
        # permits from when its plan is submitted until its result is written, at most MAX_PENDING_GRAMMARS answers
        # about grammars are outstanding, and one contender at a time asks.
        self._outbox: asyncio.Queue[Outcome | worker_pb2.GrammarPrepared | worker_pb2.RunResponse | None]
        self._outbox = asyncio.Queue()
        self._permits = asyncio.Semaphore(MAX_QUEUED_STEPS)

    async def read(self, messages: OwnerMessages, closing: Callable[[], bool]) -> None:
        """Submits plans to the step thread until the stream ends. Then waits until all results are written, and ends
        `write`."""
        end: Outcome | None = None
        step_id = 0
        grammars_of_plans: deque[list[Future[LLMatcher]]] = deque(maxlen=MAX_QUEUED_STEPS + 1)
        try:
            joiner = PartJoiner[worker_pb2.RunRequest]()
            while (received := await messages.next()) is not None:
                request = _joined(joiner, received)
                if request is None or request.HasField("heartbeat"):
                    continue
                if request.HasField("prepare"):
                    self._prepare(request.prepare)
                    continue
                if request.HasField("keep"):
                    self._ownership.keep()
                    continue
                if not request.HasField("plan"):
                    raise PlanError(f"after the claim, a message must be {_AFTER_CLAIM}")
                step_id += 1
                plan = plan_from_proto(request.plan)
                if plan.epoch != self.number:
                    raise PlanError(f"the plan is for epoch {plan.epoch}, but the current epoch is {self.number}")
                if plan.step_id != step_id:
                    raise PlanError(f"the plan has step_id {plan.step_id}, but the next step_id is {step_id}")
                # The cache drops none of these before the step thread has taken them.
                grammars_of_plans.append(await self._compiled(plan))
                await self._permits.acquire()
                late_after_s = request.plan.late_after_s or DEFAULT_LATE_AFTER_S
                self._steps.submit(self.recipient, plan, late_after_s)
        except OwnerSilentError as error:
            end = error
        except Exception as error:  # any error must reach the writer, which would otherwise wait forever
            self._outbox.put_nowait(error)
            return
        except asyncio.CancelledError:
            if not closing():
                raise
            end = WorkerClosingError()
        for _ in range(MAX_QUEUED_STEPS):
            await self._permits.acquire()
        self._outbox.put_nowait(end)

    def tell(self, message: worker_pb2.RunResponse) -> None:
        """Sends a message to the owner; does not wait."""
        self._outbox.put_nowait(message)

    async def write(self, stream: Stream) -> Exception | None:
        """Writes results until the epoch ends. Returns the error that ended the epoch, or None if the owner ended it.
        Raises TimeoutError if the owner does not read the results."""
        told = StepResult | worker_pb2.GrammarPrepared | worker_pb2.RunResponse
        while isinstance(outcome := await self._outbox.get(), told):
            if isinstance(outcome, StepResult):
                await _write(stream, worker_pb2.RunResponse(result=result_to_proto(outcome)))
                self._permits.release()
            elif isinstance(outcome, worker_pb2.RunResponse):
                await _write(stream, outcome)
            else:
                await _write(stream, worker_pb2.RunResponse(prepared=outcome))
                self._num_pending_grammars -= 1
        return outcome

    def _prepare(self, request: worker_pb2.PrepareGrammar) -> None:
        """Compiles a grammar on another thread while steps run, and sends the answer when the compilation ends."""
        if self._num_pending_grammars == MAX_PENDING_GRAMMARS:
            raise PlanError(f"{MAX_PENDING_GRAMMARS} grammars are being prepared already")
        self._num_pending_grammars += 1

        is_own = request.HasField("output_token_ids")
        verb = "failed" if is_own else "cannot be used"

        def answer(future: Future[LLMatcher]) -> None:
            problem = future.exception()
            error = "" if problem is None else f"The grammar of this request {verb}: {problem}."
            self._put(worker_pb2.GrammarPrepared(key=request.key, error=error))

        if is_own:
            prepared = self._grammars.prepare_own(request.key, request.grammar, u32(request.output_token_ids))
        else:
            prepared = self._grammars.prepare(request.grammar)
        prepared.add_done_callback(answer)

    async def _compiled(self, plan: StepPlan) -> list[Future[LLMatcher]]:
        """Waits until all grammars of the plan are compiled, and returns the shared ones. Starts to compile those that
        were never prepared, or were forgotten since. If the step thread waited for grammars instead, all sequences
        would wait. If a grammar cannot be compiled, its sequence fails when the sequence is admitted."""
        compiled = []
        for sequence in plan.new_sequences:
            if sequence.grammar:
                own = self._grammars.own(sequence.own_grammar_key)
                future = self._grammars.prepare(sequence.grammar) if own is None else own
                if not future.done():
                    await asyncio.wait((asyncio.wrap_future(future),))
                if own is None:
                    compiled.append(future)
        return compiled

    def _deliver(self, outcome: Outcome) -> None:
        """Takes a result from the step thread."""
        self._put(outcome)

    def _put(self, news: Outcome | worker_pb2.GrammarPrepared) -> None:
        """Puts a message into the outbox; safe to call from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._outbox.put_nowait, news)
        except RuntimeError:  # the event loop has closed, so no client is left
            self.recipient.closed = True


def _joined(joiner: PartJoiner[worker_pb2.RunRequest], received: worker_pb2.RunRequest) -> worker_pb2.RunRequest | None:
    """Returns the message if this part completes it, else None. Raises PlanError if the part is malformed."""
    try:
        return joiner.add(received)
    except ValueError as error:
        raise PlanError(str(error)) from None


async def _write(stream: Stream, message: worker_pb2.RunResponse) -> None:
    """Writes a message. Raises TimeoutError if the peer does not read it within WRITE_TIMEOUT_S."""
    for part in in_parts(message):
        async with Patience(WRITE_TIMEOUT_S):
            await stream.write(part)


def _status(epoch: int, end: Exception) -> tuple[grpc.StatusCode, str]:
    """Returns the gRPC status to send to the scheduler after the error `end` has ended its epoch. Logs the error."""
    if isinstance(end, PlanError):
        logger.error("epoch %d: a plan broke the contract: %s", epoch, end)
        return grpc.StatusCode.INVALID_ARGUMENT, str(end)
    if isinstance(end, WorkerClosingError):
        # With another status, the scheduler would ask itself which sequence has crashed the worker.
        return grpc.StatusCode.ABORTED, "the worker is shutting down"
    if isinstance(end, OwnerSilentError):
        logger.error("epoch %d: its owner is silent: %s", epoch, end)
        return grpc.StatusCode.DEADLINE_EXCEEDED, str(end)
    if isinstance(end, TimeoutError):
        logger.error("epoch %d: its owner took no message for %s s", epoch, WRITE_TIMEOUT_S)
        return grpc.StatusCode.DEADLINE_EXCEEDED, f"a message was not taken for {WRITE_TIMEOUT_S} s"
    logger.error("epoch %d: a step failed and the worker's state is lost", epoch, exc_info=end)
    return grpc.StatusCode.INTERNAL, "the worker failed and lost the state of this epoch"
