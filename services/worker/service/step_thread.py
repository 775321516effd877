"""The thread that loads the model and then runs steps. It does no network I/O.

The event loop submits plans through a bounded queue and receives results through callbacks. The step thread never
waits for a scheduler.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.worker.errors import DeviceLostError
from services.worker.plan import StepPlan, StepResult

if TYPE_CHECKING:
    from services.worker.service.step_log import StepLog
    from services.worker.startup import LoadedWorker
    from services.worker.step import LaunchedStep, ModelRunner

logger = logging.getLogger(__name__)

MAX_QUEUED_STEPS = 8
# A reset, or a step of a scheduler that does not say when it gives a worker up, is late after this many seconds.
DEFAULT_LATE_AFTER_S = 30.0
# While no command is queued, the thread checks once per this many seconds whether the oldest launched step has ended.
# So the step's results are late by at most this much. There is no delay while plans keep coming: after each launch, the
# thread waits for the step before it.
POLL_S = 0.0002

Outcome = StepResult | Exception


@dataclass(slots=True)
class Recipient:
    """Receives the results of one epoch: the time for which a scheduler owns the worker. The step thread calls
    `deliver` once per step, in order. If an exception ends the epoch, the last call of `deliver` receives the
    exception."""

    deliver: Callable[[Outcome], None]
    closed: bool = False


@dataclass(slots=True)
class StepCounters:
    """Totals since the worker's start, and the current number of sequences. Only the step thread writes them; any
    thread can read them."""

    num_steps: int = 0
    num_scheduled_tokens: int = 0
    num_sampled_tokens: int = 0
    num_sequence_errors: int = 0
    step_seconds: float = 0.0
    num_sequences: int = 0
    # Measured by the device's own clock; 0 if the device has none.
    device_busy_seconds: float = 0.0
    device_idle_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Step:
    recipient: Recipient
    plan: StepPlan
    received_at: float
    # The scheduler gives the worker up after this number of seconds without a result.
    late_after_s: float


@dataclass(frozen=True, slots=True)
class _Reset:
    """Command to free all sequences, so that a new epoch can start. `done` is set once all earlier steps have ended and
    the sequences are freed."""

    done: Future[None] = field(default_factory=Future)


class StepThread:
    def __init__(self, load: Callable[[], LoadedWorker], log: StepLog | None = None) -> None:
        self._log = log
        self.loaded: Future[LoadedWorker] = Future()
        self.ended: Future[None] = Future()  # fails with the error that killed the thread
        self.counters = StepCounters()
        self._load = load
        # The queue has room for MAX_QUEUED_STEPS steps and as many resets. The command None ends the thread.
        self._queue: queue.Queue[_Step | _Reset | None] = queue.Queue(2 * MAX_QUEUED_STEPS)
        self._launched: deque[tuple[_Step, LaunchedStep]] = deque()
        self._busy_since: float | None = None
        self._late_after_s = DEFAULT_LATE_AFTER_S
        self._thread = threading.Thread(target=self._run, name="steps", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def runs(self) -> bool:
        """Whether the thread has started and not ended."""
        return self._thread.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded, and steps end in time."""
        return self.runs and self.loaded.done() and self.loaded.exception() is None and not self.is_late()

    def submit(self, recipient: Recipient, plan: StepPlan, late_after_s: float = DEFAULT_LATE_AFTER_S) -> None:
        """Queues a step. Callers must not have more than MAX_QUEUED_STEPS undelivered steps per recipient.
        `late_after_s`: seconds without a result after which the scheduler gives the worker up."""
        self._queue.put_nowait(_Step(recipient, plan, time.monotonic(), late_after_s))

    def reset(self) -> Future[None]:
        """Starts a new epoch after all queued steps have run. Returns a future that completes when the epoch starts."""
        command = _Reset()
        self._queue.put_nowait(command)
        return command.done

    def stop(self, timeout: float) -> None:
        """Tells the thread to end after the queued steps, and waits up to `timeout` seconds until it has ended."""
        if not self.ended.done():
            self._queue.put_nowait(None)
        self._thread.join(timeout)

    def busy_for(self) -> float:
        """Returns how many seconds the thread has spent so far on the current step or reset, including waits for the
        device; 0 if the thread is idle."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def is_late(self) -> bool:
        """Returns whether the current step takes so long that the scheduler gives the worker up, or a reset or a step
        of a scheduler that does not say it takes longer than DEFAULT_LATE_AFTER_S."""
        return self.busy_for() > self._late_after_s

    def _begin(self, late_after_s: float) -> None:
        self._late_after_s = late_after_s
        self._busy_since = time.monotonic()

    def _run(self) -> None:
        try:
            worker = self._load()
        except BaseException as error:
            self.loaded.set_exception(error)
            return
        self.loaded.set_result(worker)
        try:
            self._run_commands(worker.runner)
        except BaseException as error:
            logger.critical("the step thread has died", exc_info=error)
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def _run_commands(self, runner: ModelRunner) -> None:
        try:
            while (command := self._next(runner)) is not None:
                if isinstance(command, _Reset):
                    self._begin(DEFAULT_LATE_AFTER_S)
                    self._reset(runner, command)
                else:
                    self._begin(command.late_after_s)
                    self._step(runner, command)
                self._busy_since = None
            runner.close()
        finally:
            if self._log is not None:
                self._log.close()

    def _reset(self, runner: ModelRunner, command: _Reset) -> None:
        # After this call, a caller cannot cancel the reset any more. It can only stop waiting for the reset.
        waited_for = command.done.set_running_or_notify_cancel()
        self._collect(runner, down_to=0)
        runner.close()
        runner.reset()
        self.counters.num_sequences = 0
        if waited_for:
            command.done.set_result(None)

    def _finished(self, runner: ModelRunner, step: LaunchedStep) -> bool:
        try:
            return runner.finished(step)
        except Exception as error:
            runner.device.check.after(error)
            return True  # `_collect` then reports the error

    def _next(self, runner: ModelRunner) -> _Step | _Reset | None:
        """Returns the next command of the queue. While the queue is empty, delivers the results of steps that end."""
        while self._launched:
            if self._busy_since is None:
                self._begin(self._launched[0][0].late_after_s)
            try:
                return self._queue.get(timeout=POLL_S)
            except queue.Empty:
                # Poll instead of waiting for the device, so that a plan that arrives meanwhile is launched at once.
                if self._finished(runner, self._launched[0][1]):
                    self._collect(runner, down_to=len(self._launched) - 1)
                    self._busy_since = None
        self._busy_since = None
        return self._queue.get()

    def _step(self, runner: ModelRunner, step: _Step) -> None:
        recipient = step.recipient
        if recipient.closed:
            return
        try:
            launched = runner.launch(step.plan, step.received_at)
            if launched.error is not None:
                logger.error("step %d failed", launched.plan.step_id, exc_info=launched.error)
                runner.device.check.after(launched.error)
            self._launched.append((step, launched))
        except DeviceLostError:
            raise
        except Exception as error:
            runner.device.check.after(error)
            self._collect(runner, down_to=0)
            recipient.closed = True
            recipient.deliver(error)
            return
        self._collect(runner, down_to=0 if runner.device.is_synchronous else 1)

    def _collect(self, runner: ModelRunner, down_to: int) -> None:
        """Collects launched steps and delivers their results, oldest first, until `down_to` launched steps are left. If
        the device is lost, raises DeviceLostError and delivers nothing more, because results of a lost device cannot be
        trusted."""
        while len(self._launched) > down_to:
            step, launched = self._launched.popleft()
            recipient = step.recipient
            try:
                result = runner.collect(launched)
            except Exception as error:
                runner.device.check.after(error)
                recipient.closed = True
                recipient.deliver(error)
                continue
            self._count(runner, result)
            if not recipient.closed:
                recipient.deliver(result)
            if self._log is not None:
                self._log.write(result, launched.num_sequences)

    def _count(self, runner: ModelRunner, result: StepResult) -> None:
        counters = self.counters
        counters.num_steps += 1
        counters.num_scheduled_tokens += result.num_scheduled_tokens
        counters.num_sampled_tokens += len(result.token_ids)
        counters.num_sequence_errors += len(result.errors)
        counters.step_seconds += result.run_us / 1e6
        counters.num_sequences = runner.num_sequences
        if result.device is not None:
            counters.device_busy_seconds += result.device.busy
            counters.device_idle_seconds += result.device.idle
