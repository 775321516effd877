"""Placement of requests: sends them to schedulers, moves them away from lost schedulers, and parks those that no
scheduler can take."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quire.inference.v1 import model_pb2
from services.router.dispatch.choice import can_relieve, choose, is_busy_for, may_take, serves
from services.router.dispatch.model_directory import ModelDirectory
from services.router.dispatch.roster import Roster
from services.router.dispatch.scheduler_connection import SchedulerConnection, StreamLostError
from services.router.dispatch.submission import Submission, SubmittedSequence
from services.router.dispatch.suspicion import EXIT_ALONE, Suspicion
from services.router.errors import ApiError, ErrorKind, overloaded, unavailable
from services.router.model import ModelInfo
from services.router.text import TextThreads, Tokenizer
from shared import clock
from shared.discovery import Source
from shared.placement import MAX_REFUSALS
from shared.transport import Connect, GrpcChannel

logger = logging.getLogger(__name__)

# Maximum number of schedulers that a sequence may lose in a row, without a new token. If it loses more, its request
# fails, because the request possibly makes them crash.
MAX_LOSSES = 5
_LAST_SEQUENCE_ID = 2**32 - 1


@dataclass(slots=True, eq=False)
class _Parked:
    """Sequences of one submission that wait for a scheduler."""

    submission: Submission
    sequences: list[SubmittedSequence]
    timer: asyncio.TimerHandle


class Placement:
    """Places requests on this router's schedulers, on one event loop. Only the coroutine methods await; every other
    method returns without letting other tasks run."""

    def __init__(
        self,
        schedulers: Source,
        *,
        router_id: str,
        threads: TextThreads,
        scheduler_wait: float,
        scheduler_silence: float,
        default_model: str | None = None,
        on_change: Callable[[], None] = lambda: None,
        connect: Connect = GrpcChannel,
        jitter: random.Random | None = None,
    ) -> None:
        """`schedulers`: discovers the schedulers. `scheduler_wait`: maximum seconds that a request waits for a
        scheduler. `scheduler_silence`: seconds without a message after which a scheduler counts as lost.
        `default_model`: name of the model for requests that name none. `on_change`: called when `is_ready` might have
        changed. `jitter`: spreads the times at which routers reconnect."""
        self.roster = Roster(
            schedulers, router_id, self, scheduler_silence, connect, jitter, on_change=lambda: self.models.update()
        )
        self.num_resubmissions = 0
        # Number of sequences that were paused because their clients did not read.
        self.num_pauses = 0
        self._threads = threads
        self._scheduler_wait = scheduler_wait
        self._on_change = on_change
        self.models = ModelDirectory(
            lambda: self.connections,
            wait=scheduler_wait,
            default=default_model,
            is_discovering=lambda: self.roster.is_stale,
        )
        self._parked: list[_Parked] = []
        # Sequences that fail with these errors if the first of two exits of workers is proved, with the timers of their
        # deadlines.
        self._blamed: dict[SubmittedSequence, tuple[ApiError, asyncio.TimerHandle | None]] = {}
        self._last_sequence_id = 0
        # The error with which every submission fails after `fail_all`.
        self._last_error: ApiError | None = None

    @property
    def connections(self) -> list[SchedulerConnection]:
        return self.roster.connections

    @property
    def is_ready(self) -> bool:
        """Whether at least one scheduler can take requests."""
        return any(connection.is_ready for connection in self.connections)

    @property
    def num_parked(self) -> int:
        """Number of sequences that wait for a scheduler, or for the proof of an exit."""
        return sum(len(parked.sequences) for parked in self._parked) + len(self._blamed)

    def start(self) -> None:
        """Starts to connect to the schedulers that are discovered; returns at once."""
        self.models.start()
        self.roster.start()

    async def stop(self) -> None:
        await self.roster.stop()
        waiting = [sequence for parked in self._parked for sequence in parked.sequences]
        for group in _by_submission([*waiting, *self._blamed]):
            self._fail(group[0].submission, unavailable("The router is stopping."))

    async def reset_prefix_caches(self) -> None:
        """Makes every connected scheduler clear its prefix cache. Raises ApiError if one does not answer."""
        connected = [connection for connection in self.connections if connection.is_ready]
        outcomes = await asyncio.gather(
            *(connection.reset_prefix_cache() for connection in connected), return_exceptions=True
        )
        if any(isinstance(outcome, BaseException) for outcome in outcomes):
            raise unavailable("A scheduler did not answer. The others have cleared their prefix caches. Try again.")

    def submit(self, submission: Submission) -> None:
        """Starts a submission. Its results and errors arrive in its mailbox."""
        if self._last_error is not None:
            self._fail(submission, self._last_error)
        else:
            self._place(submission, submission.sequences)

    def fail_all(self, error: ApiError) -> None:
        """Fails every submission with `error`, including all later ones."""
        self._last_error = error
        running = [sequence for connection in self.connections for sequence in connection.sequences]
        waiting = [sequence for parked in self._parked for sequence in parked.sequences]
        for group in _by_submission([*running, *waiting, *self._blamed]):
            self._fail(group[0].submission, error)

    def go_on(self, submission: Submission) -> None:
        """Resumes a submission whose client reads again: resubmits the sequences that `on_behind` paused, with the
        tokens received so far."""
        paused, submission.paused = submission.paused, []
        submission.waits_until = None
        submission.refusals.forget_busy()
        if self._last_error is not None:
            self._fail(submission, self._last_error)
        else:
            self._place(submission, self._next_attempt(submission, paused))

    def close(self, submission: Submission) -> None:
        """Ends a submission's sequences because its client disconnected or its request has ended. Idempotent."""
        if submission.is_closed:
            return
        submission.is_closed = True
        for sequence in submission.sequences:
            if sequence.connection is not None:
                sequence.connection.drop(sequence, abort=True)
            self._take_blamed(sequence)
        submission.paused.clear()
        for parked in [parked for parked in self._parked if parked.submission is submission]:
            self._unpark(parked)
        # Each sequence refers to its submission. Without this line, only the garbage collector could free them and the
        # prompt, and would stop all streams for longer.
        submission.sequences = []

    def end(self, sequence: SubmittedSequence) -> None:
        """Ends one sequence early because it contains a stop string."""
        if sequence.connection is not None:
            sequence.connection.drop(sequence, abort=True)
        self._take_blamed(sequence)
        if sequence in sequence.submission.paused:
            sequence.submission.paused.remove(sequence)
        for parked in self._parked:
            if sequence in parked.sequences:
                parked.sequences.remove(sequence)

    # Events from connections.

    def has_tokenizer(self, info: ModelInfo) -> bool:
        return self.models.has_tokenizer(info)

    async def on_hello(self, connection: SchedulerConnection, info: ModelInfo, bundle: bytes | None) -> None:
        if bundle is not None:
            if hashlib.sha256(bundle).hexdigest() != info.tokenizer_sha256:
                raise StreamLostError("its tokenizer does not have the sha256 that it announced")
            try:
                tokenizer = await self._threads.run_beside(lambda: self._load(bundle))
            except ValueError as error:
                raise StreamLostError(str(error)) from None
            self.models.add_tokenizer(info.tokenizer_sha256, tokenizer)
        self.models.announce(info)
        connection.info = info
        self.models.update()
        logger.info("scheduler %s at %s serves %s", connection.scheduler_id, connection.address, info.name)
        self._on_change()
        self._resume(connection)

    def on_load(self, connection: SchedulerConnection) -> None:
        if connection.lacks_workers:
            others = [other for other in self.connections if can_relieve(other, connection)]
            if moved := self._relieve(connection, connection.sequences, others):
                logger.warning(
                    "scheduler %s has no worker: moved %d sequences to others", connection.address, len(moved)
                )
        elif self._parked and not connection.is_draining:
            self._resume(connection)

    def on_stalled(self, connection: SchedulerConnection, sequences: list[SubmittedSequence]) -> None:
        now = clock.now()
        able = [sequence for sequence in sequences if sequence.may_leave_stall(now)]
        # What keeps this scheduler's workers silent may also be at work where a worker is only slow yet.
        others = [other for other in self.connections if can_relieve(other, connection) and not other.is_slow]
        moved = self._relieve(connection, able, others)
        for sequence in moved:
            sequence.leave_stall(now)
        if moved:
            logger.warning(
                "scheduler %s hears nothing from its workers: moved %d sequences to others",
                connection.address,
                len(moved),
            )

    def on_lost(self, connection: SchedulerConnection, sequences: list[SubmittedSequence]) -> None:
        self.roster.lost(connection)
        self.models.update()
        self._on_change()
        for group in _by_submission(sequences):
            if connection.is_draining:
                # The scheduler was stopped. That counts against no sequence.
                for sequence in group:
                    sequence.was_accepted = True
            elif max(sequence.count_loss() for sequence in group) > MAX_LOSSES:
                message = f"More than {MAX_LOSSES} schedulers in a row were lost while they worked on this request."
                # The error is not UNAVAILABLE, because clients would then retry the request, and more schedulers might
                # be lost.
                self._fail(group[0].submission, ApiError(ErrorKind.INTERNAL, message))
                continue
            # Forget the refusals, because schedulers that were busy might have room now.
            group[0].submission.refusals.clear()
            group[0].submission.waits_until = None
            self._resubmit(group[0].submission, group)

    def on_refused(self, connection: SchedulerConnection, errors: Mapping[SubmittedSequence, ApiError]) -> None:
        for group in _by_submission(errors):
            for kind in dict.fromkeys(errors[sequence].kind for sequence in group):
                refused = [sequence for sequence in group if errors[sequence].kind is kind]
                self._offer_elsewhere(connection, refused, errors[refused[0]])

    def _offer_elsewhere(
        self, connection: SchedulerConnection, refused: list[SubmittedSequence], error: ApiError
    ) -> None:
        """Resubmits the `refused` sequences of one submission. They stay together in one Submit, so that the prompt is
        sent once and the next scheduler takes all or none. Fails the submission if no other scheduler can take the
        sequences and waiting would not help."""
        submission = refused[0].submission
        if submission.is_closed:
            return
        is_just_moved = all(sequence.is_just_moved for sequence in refused)
        kept = [sequence for sequence in refused if connection.has_kept(sequence)]
        if kept:
            submission.waits_until = None
            submission.refusals.forget_busy()
            for sequence in kept:
                sequence.was_accepted = True
        submission.refusals.add(connection, error)
        is_offered_elsewhere = (
            error.kind is ErrorKind.OVERLOADED
            and submission.refusals.num_holding < MAX_REFUSALS
            and choose(submission, self.connections) is not None
        )
        # If another scheduler accepted the request before, the request is valid, and only this scheduler cannot take
        # it.
        is_unable = (
            error.kind is ErrorKind.INVALID_REQUEST
            and is_just_moved
            and any(may_take(submission, other) for other in self.connections)
        )
        # A scheduler refuses with UNAVAILABLE if it is stopping or has no worker. Another scheduler or worker will
        # replace it soon, so the request does not fail: it is placed again, and waits if it cannot be placed.
        if is_offered_elsewhere or is_unable or error.kind is ErrorKind.UNAVAILABLE:
            # The submission's other sequences on this scheduler are handled when the scheduler refuses them.
            self._resubmit(submission, refused)
        else:
            if error.kind is ErrorKind.INVALID_REQUEST:
                error = replace(error, param=submission.param_of(error.param))
            self._fail(submission, error)

    def on_blamed(self, sequence: SubmittedSequence, error: ApiError) -> None:
        submission, suspicion = sequence.submission, sequence.suspicion
        if submission.is_closed:
            return
        if not sequence.has_brought_an_exit or (suspicion.num_losses >= EXIT_ALONE and not suspicion.is_unproved):
            self._fail(submission, error)
        elif suspicion.is_unproved:
            # The scheduler that owes the proof sends it within its --worker-timeout, or its stream ends.
            loop, deadline = asyncio.get_running_loop(), submission.deadline
            timer = None if deadline is None else loop.call_at(deadline, self._run_out, sequence)
            self._blamed[sequence] = error, timer
        else:
            # The first of the two exits was none, only a stream was cut.
            sequence.suspicion = Suspicion(EXIT_ALONE, len(sequence.output_token_ids))
            sequence.was_accepted = True
            submission.waits_until = None
            submission.refusals.forget_busy()
            self._resubmit(submission, [sequence])

    def on_settled(self) -> None:
        known = [sequence for sequence in self._blamed if not sequence.suspicion.is_unproved]
        for group in _by_submission(known):
            for sequence in group:
                if (error := self._take_blamed(sequence)) is not None:
                    self.on_blamed(sequence, error)

    def on_gap(self, sequence: SubmittedSequence) -> None:
        connection = sequence.connection
        if connection is not None:
            logger.warning(
                "tokens from scheduler %s were lost: resubmitting the sequence",
                connection.address,
                extra={"request_id": sequence.submission.request_id},
            )
            connection.drop(sequence, abort=True)
        self._resubmit(sequence.submission, [sequence])

    def on_behind(self, submission: Submission) -> None:
        """Pauses a submission whose client does not read, so that other sequences can run in place of its sequences."""
        running = [one for one in submission.sequences if one.connection is not None and not one.is_held]
        for sequence in running:
            assert sequence.connection is not None
            sequence.connection.drop(sequence, abort=True)
            sequence.was_accepted = True
        submission.paused += running
        self.num_pauses += len(running)

    # Placement of submissions and their sequences.

    def _load(self, bundle: bytes) -> Tokenizer:
        message = model_pb2.TokenizerBundle.FromString(bundle)
        tokenizer = Tokenizer(message.tokenizer_json, message.tokenizer_config_json, self._threads)
        for problem in tokenizer.warm_templates():
            logger.warning(
                "%s Chat requests will fail; completions work. --chat-template sets another template.", problem
            )
        return tokenizer

    def _resubmit(
        self, submission: Submission, sequences: list[SubmittedSequence], target: SchedulerConnection | None = None
    ) -> None:
        """`target`: the scheduler that continues them; None for the one that `choose` returns."""
        unfinished = self._next_attempt(submission, sequences)
        self.num_resubmissions += len(unfinished)
        self._place(submission, unfinished, target)

    @staticmethod
    def _next_attempt(submission: Submission, sequences: list[SubmittedSequence]) -> list[SubmittedSequence]:
        """Finishes the sequences that need no further token, for example because the last received token is a stop
        token. Prepares the others for another attempt and returns them."""
        unfinished = []
        for sequence in sequences:
            reason = submission.end_of(sequence)
            if reason is None:
                sequence.attempt += 1
                unfinished.append(sequence)
            else:
                # The last token arrived, but the scheduler's message about the end was lost.
                sequence.finish(reason)
        return unfinished

    def _place(
        self,
        submission: Submission,
        sequences: Sequence[SubmittedSequence],
        target: SchedulerConnection | None = None,
    ) -> None:
        sequences = [sequence for sequence in sequences if not sequence.is_over]
        if not sequences:
            return
        connection = target or choose(submission, self.connections)
        if connection is not None:
            connection.submit(sequences, [self._next_sequence_id() for _ in sequences])
        elif any(is_busy_for(submission, connection) for connection in self.connections):
            self._fail(submission, overloaded("Every scheduler of this model is busy."))
        else:
            self._park(submission, sequences)

    def _park(self, submission: Submission, sequences: list[SubmittedSequence]) -> None:
        loop = asyncio.get_running_loop()
        num_tokens = submission.num_output_tokens
        # All waits of a submission share one time limit, even if schedulers refuse the submission between the waits.
        # A new limit is set for the first wait after the submission has received new tokens.
        if submission.waits_until is None or num_tokens > submission.num_tokens_at_wait:
            submission.waits_until = loop.time() + self._scheduler_wait
            submission.num_tokens_at_wait = num_tokens
        timer = loop.call_at(submission.waits_until, self._give_up, submission)
        self._parked.append(_Parked(submission, sequences, timer))

    def _resume(self, connection: SchedulerConnection) -> None:
        """Places the parked sequences that this scheduler can take."""
        able = [parked for parked in self._parked if serves(parked.submission, connection)]
        for parked in sorted(able, key=lambda parked: parked.submission.arrival):
            # An earlier iteration can have removed this entry: if `_place` fails a submission, all parked sequences of
            # the submission are removed.
            if parked in self._parked:
                self._unpark(parked)
                parked.submission.refusals.forget(connection)
                self._place(parked.submission, parked.sequences)

    def _relieve(
        self,
        connection: SchedulerConnection,
        sequences: list[SubmittedSequence],
        others: list[SchedulerConnection],
    ) -> list[SubmittedSequence]:
        """Moves sequences of a scheduler whose workers are lost or silent to `others`. Those that none of the others
        can take stay, because a worker might come back. The move itself does not count as a loss. Returns the sequences
        that were moved."""
        if not sequences or not others:
            return []
        moved: list[SubmittedSequence] = []
        for group in _by_submission(sequence for sequence in sequences if not sequence.is_held):
            submission = group[0].submission
            submission.refusals.forget_busy()
            target = choose(submission, others)
            if target is None:
                continue
            if any(connection.has_kept(sequence) for sequence in group):
                submission.waits_until = None
            for sequence in group:
                connection.drop(sequence, abort=True)
                sequence.was_accepted = True
            self._resubmit(submission, group, target)
            moved += group
        return moved

    def _unpark(self, parked: _Parked) -> None:
        parked.timer.cancel()
        self._parked.remove(parked)

    def _give_up(self, submission: Submission) -> None:
        """Ends the wait of a submission: another version of its model continues it, or it fails."""
        other = None if submission.is_pinned else self.models.other_version(submission.model)
        if other is not None:
            logger.info(
                "version %r of %s continues for version %r, whose schedulers could not take the request in time",
                *(other.version, other.name, submission.model.version),
                extra={"request_id": submission.request_id},
            )
            # A second change would not help: the other version's schedulers are there and refuse.
            submission.model, submission.is_pinned = other, True
            submission.waits_until = None
            waiting = [parked for parked in self._parked if parked.submission is submission]
            for parked in waiting:
                self._unpark(parked)
            self._place(submission, [sequence for parked in waiting for sequence in parked.sequences])
            return
        reasons = [error for error in submission.refusals.errors if error.kind is ErrorKind.UNAVAILABLE]
        message = f"No scheduler of this model came back within {self._scheduler_wait:g} s."
        self._fail(submission, reasons[-1] if reasons else unavailable(message))

    def _take_blamed(self, sequence: SubmittedSequence) -> ApiError | None:
        """Lets a sequence wait for the proof of an exit no more. Returns its error; None if it did not wait."""
        error, timer = self._blamed.pop(sequence, (None, None))
        if timer is not None:
            timer.cancel()
        return error

    def _run_out(self, sequence: SubmittedSequence) -> None:
        message = "The request's time ran out before it was known why its worker was lost."
        self._fail(sequence.submission, ApiError(ErrorKind.TIMEOUT, message))

    def _fail(self, submission: Submission, error: ApiError) -> None:
        self.close(submission)
        submission.mailbox.fail(error)

    def _next_sequence_id(self) -> int:
        # The ids begin at 1 again after four billion sequences. By then, the first sequences have ended.
        self._last_sequence_id = self._last_sequence_id % _LAST_SEQUENCE_ID + 1
        return self._last_sequence_id


def _by_submission(sequences: Iterable[SubmittedSequence]) -> list[list[SubmittedSequence]]:
    """Groups sequences by their submissions, in the order in which the submissions arrived."""
    groups: dict[int, list[SubmittedSequence]] = {}
    for sequence in sequences:
        groups.setdefault(id(sequence.submission), []).append(sequence)
    return sorted(groups.values(), key=lambda group: group[0].submission.arrival)
