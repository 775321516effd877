"""Serves quire.scheduler.v1.SchedulerService to routers, and passes their requests on to the worker groups."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc

from quire.inference.v1 import model_pb2
from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.scheduler.converters import u32
from services.scheduler.core import ErrorKind, Failure, FinishReason, RefusedError
from services.scheduler.sessions import RouterSession, SequenceKey, hello_message
from services.scheduler.submission import routed_requests
from services.scheduler.submit_checks import MAX_CHOICES, check_submit
from services.scheduler.worker_groups import Fleet, WorkerGroup, WorkerLostError
from shared import clock
from shared.grpc_server import MAX_ID_CHARS, STALLED_PEER_S
from shared.malformed import MalformedRequestError, RefusalLog
from shared.message_parts import PartJoiner, in_parts
from shared.patience import Patience
from shared.placement import LOAD_INTERVAL_S
from shared.release import IncompatibleReleaseError, check_release
from shared.throughput import Throughput
from shared.transport import GrpcServerStream, ServerStream

logger = logging.getLogger(__name__)

# A router that opens a stream must send its hello within this time.
HELLO_TIMEOUT_S = 10.0
# Number of sequences that are aborted at a time. Between two batches, other callbacks of the event loop can run.
_ABORTS_AT_ONCE = 1024

Context = grpc.aio.ServicerContext[Any, Any]
Stream = ServerStream[scheduler_pb2.ConnectRequest, scheduler_pb2.ConnectResponse]


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Connects routers to worker groups. Not thread-safe: runs on the event loop's thread, as the groups do."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        # Routers are told at once, because they move the sequences of a scheduler that has lost all its workers.
        fleet.on_change = lambda: self._send_load(self.load())
        # A dict instead of a set, so that the sessions have an order, and equal runs of a simulation are equal.
        self._sessions: dict[RouterSession, None] = {}
        self._refusals = RefusalLog()
        self.throughput = Throughput()

    # -- Calls ---------------------------------------------------------------------------------------------------------

    async def Connect(  # type: ignore[override] # noqa: N802
        self, request_iterator: AsyncIterator[scheduler_pb2.ConnectRequest], context: Context
    ) -> None:
        await self.connect(GrpcServerStream(request_iterator, context))

    async def GetTokenizer(  # noqa: N802
        self, request: model_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[model_pb2.GetTokenizerResponse]:
        try:
            chunks = await self._ready_group().tokenizer_chunks()
        except (WorkerLostError, RefusedError) as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        for chunk in chunks:
            yield model_pb2.GetTokenizerResponse(chunk=chunk)

    async def GetStats(  # noqa: N802
        self, request: scheduler_pb2.GetStatsRequest, context: Context
    ) -> scheduler_pb2.GetStatsResponse:
        counters = [engine.counters for engine in self._fleet.engines.all]
        return scheduler_pb2.GetStatsResponse(
            load=self.load(),
            num_steps=sum(counter.steps for counter in counters),
            num_aborted=sum(counter.aborts for counter in counters),
        )

    async def ResetPrefixCache(  # noqa: N802
        self, request: scheduler_pb2.ResetPrefixCacheRequest, context: Context
    ) -> scheduler_pb2.ResetPrefixCacheResponse:
        for group in self._fleet.groups:
            if group.core is not None:
                group.core.memory.prefix_cache.clear()
        return scheduler_pb2.ResetPrefixCacheResponse()

    # -- The rest of the service ---------------------------------------------------------------------------------------

    async def connect(self, stream: Stream) -> None:
        """Serves a router's stream until it ends. Raises MalformedRequestError."""
        first = await _first(stream)
        if first is None or not first.HasField("hello"):
            raise MalformedRequestError("the first message must be a hello")
        try:
            check_release(first.hello, "the router")
        except IncompatibleReleaseError as error:
            logger.warning("refused router %s: %s", first.hello.router_id[:MAX_ID_CHARS], error)
            await stream.abort(grpc.StatusCode.UNIMPLEMENTED, f"refused by the scheduler: {error}")
        session = RouterSession(first.hello.router_id[:MAX_ID_CHARS])
        await self._fleet.wait_ready()
        fleet = self._fleet
        await stream.write(hello_message(fleet.scheduler_id, fleet.model.info, fleet.config.model_weight))
        session.set_load(self.load())
        self._sessions[session] = None
        logger.info("router %s connected", session.router_id)
        reader = asyncio.create_task(self._read(session, stream))
        end = None
        try:
            end = await self._write(session, stream, reader)
        finally:
            reader.cancel()
            self._sessions.pop(session, None)
            for key in list(session.unfinished.values()):
                self._abort(key)
            logger.info("router %s is gone", session.router_id)
        if end is not None:
            # This call can take long if the router is stalled, because gRPC sends the status only after the router has
            # read all earlier messages. So the sequences are aborted before this call.
            await stream.abort(*end)

    async def tick_forever(self) -> None:
        """Every LOAD_INTERVAL_S, calls `tick` of every group and sends the load to every router. Runs until
        cancelled."""
        while True:
            await asyncio.sleep(LOAD_INTERVAL_S)
            now = clock.now()
            self._fleet.tick(now)
            load = self.load()
            self.throughput.observe(now, load.num_prompt_tokens, load.num_generation_tokens)
            self._send_load(load)

    def _send_load(self, load: scheduler_pb2.Load) -> None:
        for session in self._sessions:
            session.set_load(load)

    def start_draining(self) -> None:
        """Refuses new requests from now on."""
        self._fleet.is_draining = True
        self._fleet.on_change()

    @property
    def is_idle(self) -> bool:
        return not any(session.unfinished for session in self._sessions)

    def load(self) -> scheduler_pb2.Load:
        fleet = self._fleet
        load = scheduler_pb2.Load(
            is_draining=fleet.is_draining, is_struggling=fleet.is_struggling, is_slow=fleet.is_slow
        )
        steps_by_tokens: list[list[int]] = []
        for group in self._fleet.groups:
            core = group.core
            if core is None:
                continue
            load.outstanding_tokens += core.num_outstanding_tokens
            load.num_ready_groups += group.ready.is_set()
            load.num_running += core.num_running
            load.num_waiting += core.num_waiting
            load.num_deferred += core.num_deferred
            load.num_used_blocks += core.memory.pool.num_used
            load.num_blocks += core.memory.pool.num_blocks
            load.num_used_host_blocks += core.memory.host.num_used
            load.num_host_blocks += core.memory.host.num_slots
            load.block_size = core.config.block_size
            load.enable_prefix_caching = core.config.enable_prefix_caching
        # These counts include those of groups that were removed.
        for engine in self._fleet.engines.all:
            load.num_prompt_tokens += engine.counters.prompt_tokens
            load.num_generation_tokens += engine.counters.generation_tokens
            load.num_preemptions += engine.counters.preemptions
            load.num_prefix_cache_queries += engine.counters.prefix_cache_queries
            load.num_prefix_cache_hits += engine.counters.prefix_cache_hits
            load.num_host_cache_queries += engine.counters.host_cache_queries
            load.num_host_cache_hits += engine.counters.host_cache_hits
            load.num_scheduled_tokens += engine.counters.scheduled_tokens
            steps_by_tokens.append(engine.counters.steps_by_tokens)
        load.num_steps_by_tokens.extend(map(sum, zip(*steps_by_tokens, strict=True)))
        return load

    async def _write(
        self, session: RouterSession, stream: Stream, reader: asyncio.Task[None]
    ) -> tuple[grpc.StatusCode, str] | None:
        """Writes the session's messages to the stream, until the router closes its side. Meanwhile, no other code may
        write to the stream. If the router stalls, returns the status with which to end the call. Raises
        MalformedRequestError if `reader` has received a message that breaks the protocol.
        """
        while not reader.done():
            news = asyncio.ensure_future(session.next_messages())
            try:
                await asyncio.wait((news, reader), return_when=asyncio.FIRST_COMPLETED)
                if not news.done():
                    break
                for message in news.result():
                    for part in in_parts(message):
                        async with Patience(STALLED_PEER_S):
                            await stream.write(part)
            except TimeoutError:
                logger.warning("router %s read nothing for %g s: dropping it", session.router_id, STALLED_PEER_S)
                return grpc.StatusCode.RESOURCE_EXHAUSTED, "the router reads too slowly"
            finally:
                news.cancel()
        try:
            await reader
        except ValueError as error:
            raise MalformedRequestError(str(error)) from None
        return None

    async def _read(self, session: RouterSession, stream: Stream) -> None:
        """Handles the router's messages until the stream ends. Raises ValueError for a message that breaks the
        protocol.
        """
        joiner = PartJoiner[scheduler_pb2.ConnectRequest]()
        while (received := await stream.read()) is not None:
            request = joiner.add(received)
            if request is None:
                continue
            match request.WhichOneof("message"):
                case "submit":
                    self._submit(session, request.submit)
                case "abort":
                    await self._abort_all(session, request.abort.sequence_ids)
                case other:
                    raise ValueError(f"unexpected message: {other}")

    async def _abort_all(self, session: RouterSession, column: bytes) -> None:
        """Aborts sequences in batches, so that results of steps do not wait until a long list is aborted. `column`: u32
        sequence ids. A malformed column is only logged, because it names no sequence to which an error could be sent.
        """
        if len(column) % 4:
            problem = f"Invalid 'sequence_ids': {len(column)} bytes are no whole number of u32."
            self._refusals.refused(f"router {session.router_id}", "Abort", problem)
            return
        for start in range(0, len(column), 4 * _ABORTS_AT_ONCE):
            for sequence_id in u32(column[start : start + 4 * _ABORTS_AT_ONCE]):
                if (key := session.unfinished.pop(sequence_id, None)) is not None:
                    self._abort(key)
            await asyncio.sleep(0)

    def _submit(self, session: RouterSession, submit: scheduler_pb2.Submit) -> None:
        try:
            check_submit(submit, self._fleet.model.info, self._fleet.max_model_len)
        except RefusedError as error:
            self._refuse(session, submit, error.failure)
            return
        keys = [self._name(session, choice, submit.request_id) for choice in submit.choices]
        by_priority = self._fleet.config.scheduling_policy == "priority"
        requests = routed_requests(submit, keys, self._fleet.model, by_priority=by_priority)
        try:
            if self._fleet.is_draining:
                raise RefusedError(Failure(ErrorKind.UNAVAILABLE, "this scheduler is shutting down", 1.0))
            # All choices of a request go to one group, so that they share the prompt's blocks.
            group = self._ready_group()
            group.check_room(requests)
        except RefusedError as error:
            for request in requests:
                self._end(request.key, error.failure)
            return
        for request in requests:
            try:
                group.submit(request)
            except RefusedError as error:
                self._end(request.key, error.failure)

    @staticmethod
    def _end(key: SequenceKey, failure: Failure) -> None:
        """Tells the router that a sequence was refused."""
        logger.debug("request %s is refused: %s", key.request_id, failure.message)
        key.session.add_finished(key, FinishReason.ERROR, failure)

    def _refuse(self, session: RouterSession, submit: scheduler_pb2.Submit, failure: Failure) -> None:
        """Sends `failure` for each choice of a malformed Submit, but at most for the first MAX_CHOICES choices."""
        self._refusals.refused(f"router {session.router_id}", "Submit", failure.message)
        choices = {choice.sequence_id: choice for choice in submit.choices[:MAX_CHOICES]}
        for choice in choices.values():
            session.add_finished(self._name(session, choice, submit.request_id), FinishReason.ERROR, failure)

    def _name(self, session: RouterSession, choice: scheduler_pb2.Choice, request_id: str) -> SequenceKey:
        """Registers a choice as a sequence and returns its key. Aborts an earlier attempt with the same id."""
        if (stale := session.unfinished.pop(choice.sequence_id, None)) is not None:
            self._abort(stale)
        return session.add_sequence(choice.sequence_id, choice.attempt, request_id)

    def _ready_group(self) -> WorkerGroup:
        """Returns the least loaded group. Raises RefusedError if no worker has connected yet."""
        group = self._fleet.least_loaded()
        if group is None:
            raise RefusedError(Failure(ErrorKind.UNAVAILABLE, "no worker is connected yet", 1.0))
        return group

    def _abort(self, key: SequenceKey) -> None:
        key.session.unfinished.pop(key.sequence_id, None)
        self._fleet.abort(key)


async def _first(stream: Stream) -> scheduler_pb2.ConnectRequest | None:
    """Returns the stream's first message; None if the stream ends before. Ends a stream whose first message does not
    come."""
    try:
        async with Patience(HELLO_TIMEOUT_S):
            return await stream.read()
    except TimeoutError:
        # The network may have lost it.
        await stream.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello arrived within {HELLO_TIMEOUT_S:g} s")
