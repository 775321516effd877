"""One worker group: its sequences, and the service of its worker from the claim to the loss.

When a worker is lost, its KV blocks and the steps in flight are lost, too. The core keeps the sequences. Another group
takes the sequences over, or this group continues them when a worker is claimed at its address again. If the scheduler
has no worker left, routers move the sequences to another scheduler of the model that has a worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from collections.abc import Sequence as Sequences
from dataclasses import replace
from enum import Enum, auto

from quire.scheduler.v1 import scheduler_pb2
from quire.worker.v1 import worker_pb2
from services.scheduler.config import SchedulerConfig
from services.scheduler.converters import WorkerHello
from services.scheduler.core import (
    CoreConfig,
    ErrorKind,
    Failure,
    FinishedSequence,
    FinishReason,
    RefusedError,
    Scheduler,
    Sequence,
    TurnRate,
    share_out,
)
from services.scheduler.sessions import RoutedRequest, SequenceKey, SequenceSpans
from services.scheduler.worker_groups.accusations import Accusations, Acquittal
from services.scheduler.worker_groups.engines import Engine, Engines
from services.scheduler.worker_groups.fleet_model import FleetModel, OtherModelError
from services.scheduler.worker_groups.outputs import report, report_interruptions
from services.scheduler.worker_groups.progress import SLOW
from services.scheduler.worker_groups.step_loop import StepLoop
from services.scheduler.worker_groups.worker_link import Loss, WorkerLink, WorkerLostError
from services.scheduler.worker_groups.worker_options import core_config, options_problem, seed_step_times
from shared import clock

logger = logging.getLogger(__name__)


class UnusableWorkerError(Exception):
    """The first worker that a group claimed cannot do what the scheduler's options ask for. The message says why."""


class ServiceEnd(Enum):
    """How a group's service of a claimed worker ended."""

    # The worker was lost, or has stopped, before it had run some steps.
    LOST = auto()
    # The worker was lost after it had run some steps.
    LOST_AT_WORK = auto()
    # Another scheduler asked for the worker and gets it.
    GIVEN_AWAY = auto()
    # The worker serves another model.
    UNSUITABLE = auto()


class WorkerGroup:
    """The scheduler core of one worker group, and the step loop on the group's worker. Not thread-safe.

    `ready` is set while a worker is claimed that is not stopping.
    """

    def __init__(
        self,
        address: str,
        config: SchedulerConfig,
        model: FleetModel,
        spans: SequenceSpans,
        engines: Engines,
        accusations: Accusations,
        peers: Sequences[WorkerGroup],
        on_change: Callable[[], None],
        gives_away: Callable[[int, bool], bool],
    ) -> None:
        """`address`: the worker's address. `peers`: all groups of the scheduler, including those that are added to it
        later. `on_change`: called after a worker was claimed or lost. `gives_away`: decides whether the scheduler gives
        a worker to a scheduler with that number of workers; the second argument is whether the worker is idle.
        """
        self.address = address
        self.ready = asyncio.Event()
        self._model = model
        self._engines = engines
        self._engine: Engine | None = None
        self._peers = peers
        self._on_change = on_change
        self._gives_away = gives_away
        # Whether the claimed worker is stopping. `ready` is not set then.
        self._is_draining = False
        self.core: Scheduler[RoutedRequest] | None = None
        self.steps = StepLoop(address, config, spans)
        self._config = config
        self._turn_rate = TurnRate()
        self._accusations = accusations
        self._boot_id = 0  # of the claimed worker
        self.num_lost = 0  # how often its worker was lost
        self._spans = spans

    # -- Requests ------------------------------------------------------------------------------------------------------

    def check_room(self, requests: list[RoutedRequest]) -> None:
        """Raises RefusedError if the queue has no room for all choices of one Submit."""
        num_new = sum(not request.was_accepted for request in requests)
        if self.core is None or not num_new:
            return
        try:
            self.core.check_room(requests[0].flow, num_new)
        except RefusedError as error:
            if error.failure.kind is not ErrorKind.RESOURCE_EXHAUSTED:
                raise
            seconds = self._turn_rate.seconds_until_turn(self.core.num_waiting)
            raise RefusedError(replace(error.failure, retry_after_s=seconds)) from None

    def submit(self, request: RoutedRequest) -> None:
        """Queues a request whose Submit has passed `check_submit` and `check_room`. Raises RefusedError if no worker
        was claimed yet, or if the model or the core cannot run the request.
        """
        if self.core is None:
            raise RefusedError(Failure(ErrorKind.UNAVAILABLE, "no worker is connected yet", 1.0))
        self._model.check_task(request)
        self._spans.start(self.core.submit(request))
        self.steps.pump_soon()

    def abort(self, key: SequenceKey) -> bool:
        if self.core is None or not self.core.abort(key):
            return False
        self._spans.end(key, "aborted")
        self.steps.pump_soon()
        return True

    def tick(self, now: float) -> None:
        """Ends sequences whose deadline is past. Fails all sequences if the worker is lost for longer than
        --worker-timeout.
        """
        self.steps.tick(now)
        if self.core is None:
            return
        self._finish(self.core.expire(now))
        self._turn_rate.observe(now, self.core.counters.starts)
        if self._is_draining and self.steps.link is not None and not self.num_unfinished:
            self.steps.link.cancel()  # the worker waits for this
        is_lost = not self.ready.is_set() and not self.is_claimed
        if is_lost and self.steps.silent_s > self._config.worker_timeout:
            failure = Failure(ErrorKind.UNAVAILABLE, "the worker was lost and did not come back", 1.0)
            self._fail_all(failure, self.core)
        self.steps.pump_soon()

    def give_up(self) -> None:
        """Closes the stream to a worker that sends nothing. Its sequences then move to other groups."""
        logger.error(
            "worker %s sent no result for %.1f s, but its steps were expected to take less; closing its stream",
            self.address,
            self.steps.silent_s,
        )
        # Until its stream ends, nothing may go to it, although it is not silent any more.
        self.ready.clear()
        self.steps.give_up()

    def relieve(self, now: float) -> None:
        """Moves sequences of a worker that sends nothing to other groups whose workers are not slow, as many as these
        have free places. The others may still go on here, with their KV blocks. The worker keeps its plans in flight:
        their results bring nothing to a sequence that has moved."""
        assert self.core is not None
        peers = [group for group in self._ready_peers() if group.silence <= SLOW]

        def may_move(sequence: Sequence[RoutedRequest]) -> bool:
            return sequence.request.stall_moves.may_move(now, len(sequence.token_ids))

        running = {sequence.request.key for sequence in self.core.running}
        most = sum(group.core.num_free_places for group in peers if group.core is not None)
        moved = self._hand_over(self.core, peers, may_move, most)
        for sequence in moved:
            sequence.request.stall_moves.moved(now, len(sequence.token_ids))
            sequence.request.key.session.drop_stall(sequence.request.key)
        ran = [sequence for sequence in moved if sequence.request.key in running]
        report_interruptions(ran, scheduler_pb2.INTERRUPTION_REASON_WORKER_LOST, self._spans)
        if moved:
            logger.warning("worker %s sends nothing: moved %d sequences to other workers", self.address, len(moved))

    def offer(self) -> None:
        """Tells the routers that the sequences of a worker that sends nothing stand still. They move them to other
        schedulers, if there are any that can run them."""
        assert self.core is not None
        for sequence in self.core.sequences:
            sequence.request.key.session.add_stall(sequence.request.key)

    def drain_lost(self) -> list[Sequence[RoutedRequest]]:
        """Removes and returns the sequences of all other groups that have no worker, except sequences that do not fit
        this group's context."""
        assert self.core is not None
        others = [group for group in self._peers if group is not self and not group.ready.is_set()]
        return [sequence for group in others if group.core is not None for sequence in group.core.drain([self.core])]

    @property
    def is_claimed(self) -> bool:
        return self.steps.link is not None

    @property
    def engine(self) -> Engine | None:
        """The group's number and counters; None while the group has no core."""
        return self._engine

    @property
    def is_healthy(self) -> bool:
        """Whether a worker is claimed and plans in flight make progress."""
        return self.ready.is_set() and self.silence <= 1.0

    @property
    def silence(self) -> float:
        """Time without a result, in units of the time after which the group is late. 0 if no plan is in flight."""
        return self.steps.silence

    @property
    def late_s(self) -> float:
        """Seconds for which the group has been late; 0 if it is not."""
        return self.steps.late_s

    @property
    def stalled_s(self) -> float:
        """Seconds since the last result while plans are in flight, else 0."""
        return self.steps.silent_s if self.silence else 0.0

    @property
    def num_queued(self) -> int:
        """Number of messages that wait to be sent to the worker."""
        return 0 if self.steps.link is None else self.steps.link.num_queued

    @property
    def num_unfinished(self) -> int:
        return 0 if self.core is None else self.core.num_running + self.core.num_waiting

    # -- The worker ----------------------------------------------------------------------------------------------------

    async def serve(self, link: WorkerLink) -> ServiceEnd:
        """Runs steps on a claimed worker until it is lost or given away. Raises UnusableWorkerError if it is the
        scheduler's first worker and cannot be used.
        """
        steps_before = 0 if self.core is None else self.core.counters.steps
        end, loss = ServiceEnd.LOST, Loss.PLANNED
        try:
            end = await self._serve(link)
        except OtherModelError as error:
            logger.warning("worker %s cannot be used: %s", self.address, error)
            end = ServiceEnd.UNSUITABLE
        except WorkerLostError as error:
            if self._is_draining and error.loss is not Loss.FAILED:
                logger.info("worker %s has stopped: %s", self.address, error)
            else:
                logger.warning("lost worker %s: %s", self.address, error)
                self.num_lost += error.loss is not Loss.PLANNED
            # No sequence is at fault for the end of a worker that was stopping.
            loss = Loss.PLANNED if self._is_draining else error.loss
        finally:
            self._on_lost(loss)
            await link.close()
        if end is ServiceEnd.LOST and self.core is not None:
            has_worked = self.core.counters.steps > steps_before + self.steps.depth
            end = ServiceEnd.LOST_AT_WORK if has_worked else ServiceEnd.LOST
        return end

    def settle(self, boot_id: int) -> None:
        """Takes note of the process that is at the worker's address now, whichever scheduler holds it."""
        for acquittal in self._accusations.settle(self.address, boot_id):
            self._acquit(acquittal)

    def forget_worker(self) -> None:
        """Frees the block tables of a group that has neither a worker nor sequences. It makes new ones when it claims a
        worker again."""
        assert not self.is_claimed
        assert not self.num_unfinished
        self.core = None
        if self._engine is not None:
            self._engines.give_back(self._engine)
            self._engine = None

    async def tokenizer_chunks(self) -> list[bytes]:
        """Returns the serialized TokenizerBundle, in pieces. Raises WorkerLostError if no worker is claimed."""
        if self.steps.link is None:
            raise WorkerLostError(f"worker {self.address} is not connected")
        return [chunk async for chunk in self.steps.link.tokenizer_chunks()]

    async def _serve(self, link: WorkerLink) -> ServiceEnd:
        """Returns when the worker is given away, or is stopping and has nothing to do. Raises WorkerLostError if it is
        lost."""
        hello = link.hello
        self._check_options(hello)
        self._model.adopt(hello.model)
        try:
            core = self._adopt_core(core_config(hello, self._config), hello)
        except ValueError as error:
            raise WorkerLostError(f"worker {self.address} offers an unusable configuration: {error}") from error
        self.steps.begin(link, core)
        self._boot_id = hello.boot_id
        self.settle(hello.boot_id)
        logger.info(
            "claimed worker %s, epoch %d: %s, %d KV blocks of %d tokens",
            self.address,
            hello.epoch,
            hello.model.name,
            hello.num_blocks,
            hello.block_size,
        )
        # Take over the sequences of groups that have lost their workers: those workers might not come back.
        self._adopt(self.drain_lost())
        self.ready.set()
        self.steps.pump()
        self._on_change()
        async for message in link.results():
            if isinstance(message, worker_pb2.StepResult):
                self.steps.on_result(message)
            elif isinstance(message, worker_pb2.GrammarPrepared):
                self.steps.on_prepared(message)
            elif isinstance(message, worker_pb2.Drain):
                self._on_drain()
                if not self.num_unfinished:
                    return ServiceEnd.LOST
            elif self._gives_away(message.num_groups, not self.num_unfinished) and self._hand_over_all():
                logger.info("gave worker %s to scheduler %s", self.address, message.scheduler_id)
                return ServiceEnd.GIVEN_AWAY
            else:
                link.keep()
        raise AssertionError("the results of a link end with an error")

    def _check_options(self, hello: WorkerHello) -> None:
        """Checks that the worker can do what the scheduler's options ask for. If the first worker cannot, raises
        UnusableWorkerError, which ends the scheduler. If a later one cannot, raises WorkerLostError, and the other
        groups continue."""
        problem = options_problem(hello, self._config)
        if problem is None:
            return
        if self._model.is_known:
            raise WorkerLostError(f"worker {self.address} cannot be used: {problem}")
        raise UnusableWorkerError(problem)

    def _adopt_core(self, config: CoreConfig, hello: WorkerHello) -> Scheduler[RoutedRequest]:
        """Makes a core for the claimed worker, unless the group has one with the same configuration. Moves the old
        core's sequences to the new core. If the new context is too small for a sequence, moves it to another group; if
        no group's context is large enough, the sequence fails."""
        if self.core is None:
            self._engine = self._engines.take()
            self.core = Scheduler(config, self._engine.counters)
            seed_step_times(self.core, hello)
        elif self.core.config != config:
            last = self.core
            self.core = Scheduler(config, last.counters)
            seed_step_times(self.core, hello)
            self._adopt(last.drain([self.core]))
            self._hand_over(last, [other for other in self._peers if other is not self])
            message = f"the worker came back with a context of {config.max_model_len}, which is too small"
            # UNAVAILABLE lets the router try another scheduler, whose context might be larger.
            self._fail_all(Failure(ErrorKind.UNAVAILABLE, message, 1.0), last)
        return self.core

    def _adopt(self, sequences: list[Sequence[RoutedRequest]]) -> None:
        """Queues sequences that another core's `drain` returned. Fails the sequences that this group's core refuses."""
        assert self.core is not None
        for sequence in sequences:
            try:
                self.core.adopt(sequence)
            except RefusedError as error:
                self._finish([FinishedSequence(sequence, FinishReason.ERROR, error.failure)])
        self.steps.pump_soon()

    def _acquit(self, acquittal: Acquittal) -> None:
        """Lowers the suspicion of a sequence: a worker did not exit, only its connection was cut."""
        key, suspicion = acquittal.key, acquittal.suspicion
        cores = [group.core for group in self._peers if group.core is not None]
        if acquittal.sequence is not None:
            takers = [group for group in (self, *self._peers) if group.core is not None]
            taker = next((group for group in takers if group.is_claimed), takers[0] if takers else None)
            if taker is not None:
                taker._adopt([acquittal.sequence])
            else:
                # UNAVAILABLE lets the router try another scheduler.
                failure = Failure(ErrorKind.UNAVAILABLE, "the worker was lost, and another scheduler holds it", 1.0)
                self._finish([FinishedSequence(acquittal.sequence, FinishReason.ERROR, failure)])
            return
        for core in cores:
            core.withdraw(key, suspicion)
        # The router is told in any case. It may have moved the sequence, and wait for this.
        left = (core.suspicion_of(key) for core in cores)
        suspicion = next((one for one in left if one is not None), suspicion)
        key.session.add_worker_loss(key, suspicion, is_unproved=acquittal.is_unproved)

    def _on_lost(self, loss: Loss) -> None:
        self.steps.end()
        self.ready.clear()
        self._is_draining = False
        if self.core is None:
            return
        report_interruptions(self.core.running, scheduler_pb2.INTERRUPTION_REASON_WORKER_LOST, self._spans)
        before = {sequence.request.key: sequence.suspicion for sequence in self.core.suspects()}
        failed = self.core.reset(is_exit=loss is not Loss.PLANNED)
        after = {sequence.request.key: sequence.suspicion for sequence in self.core.suspects()}
        accused = {key: (now, before.get(key, 0)) for key, now in after.items() if now != before.get(key, 0)}
        is_proved = loss is not Loss.BROKEN
        self._accusations.accuse(self.address, self._boot_id, accused, failed, clock.now(), is_proved=is_proved)
        self._finish(self._accusations.judge(clock.now()))
        for sequence in self.core.sequences:
            sequence.request.stall_moves.lost_worker()
        # Sequences that fit no other group's context wait for this worker.
        self._hand_over(self.core, self._ready_peers())
        self._on_change()

    def _on_drain(self) -> None:
        """The worker is stopping: moves the sequences to groups that have workers. Sequences that fit in none of them
        go on here. If there is no such group, the scheduler reports that it has no worker, so routers move the
        sequences to other schedulers that have one."""
        assert self.core is not None
        logger.info("worker %s is stopping", self.address)
        self._is_draining = True
        self.ready.clear()
        self._hand_over(self.core, self._ready_peers())
        self._on_change()

    def _hand_over_all(self) -> bool:
        """Moves all sequences to the other groups that have workers. Returns False, and moves none, if one of them fits
        no other group."""
        assert self.core is not None
        others = self._ready_peers()
        if not self.core.fit_in([group.core for group in others if group.core is not None]):
            return False
        self.ready.clear()
        self._hand_over(self.core, others)
        return True

    def _ready_peers(self) -> list[WorkerGroup]:
        """Returns the other groups that have workers; only those whose workers are not slow, if there are any."""
        ready = [group for group in self._peers if group is not self and group.ready.is_set()]
        return [group for group in ready if group.silence <= SLOW] or ready

    @staticmethod
    def _hand_over(
        core: Scheduler[RoutedRequest],
        groups: list[WorkerGroup],
        may_move: Callable[[Sequence[RoutedRequest]], bool] = lambda _: True,
        most: int | None = None,
    ) -> list[Sequence[RoutedRequest]]:
        """Spreads the sequences of `core` that may move, `most` at most, over the groups in whose contexts they fit.
        Returns them."""
        takers = [(group, group.core) for group in groups if group.core is not None]
        cores = [taker for _, taker in takers]
        drained = core.drain(cores, may_move, most)
        for (group, _), sequences in zip(takers, share_out(drained, cores), strict=True):
            group._adopt(sequences)
        return drained

    def _finish(self, ends: list[FinishedSequence[RoutedRequest]]) -> None:
        report(ends, self._spans)

    def _fail_all(self, failure: Failure, core: Scheduler[RoutedRequest]) -> None:
        self._finish([FinishedSequence(sequence, FinishReason.ERROR, failure) for sequence in core.drain()])
