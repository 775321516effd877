"""The loop that keeps plans in flight on a claimed worker.

All of it runs on the event loop's thread, and never waits for a worker or a router: separate tasks send the plans and
the tokens.
"""

from __future__ import annotations

import asyncio

from quire.scheduler.v1 import scheduler_pb2
from quire.worker.v1 import worker_pb2
from services.scheduler.config import SchedulerConfig
from services.scheduler.converters import logprobs_from_proto, result_from_proto
from services.scheduler.core import RunAhead, Scheduler
from services.scheduler.sessions import RoutedRequest, SequenceSpans
from services.scheduler.worker_groups.outputs import deliver, report, report_interruptions
from services.scheduler.worker_groups.progress import Patience
from services.scheduler.worker_groups.worker_link import Loss, WorkerLink, WorkerLostError
from shared import clock

# Maximum number of seconds that one call of `tick` counts as silence of the worker. `tick` is due every 100 ms. A much
# longer time between two calls means that this process was paused or busy, not that the worker was silent.
_LONGEST_TICK_S = 0.25


class StepLoop:
    """Sends a core's plans to a worker, and applies the results. Does nothing while no worker is claimed.

    `link`: the stream to the claimed worker.
    """

    def __init__(self, address: str, config: SchedulerConfig, spans: SequenceSpans) -> None:
        self.link: WorkerLink | None = None
        # Seconds since the last result, or since the worker was lost, without the time for which this process was
        # paused. While a worker is claimed, the number is meaningful only if plans are in flight.
        self.silent_s = 0.0
        self._address = address
        self._spans = spans
        self._core: Scheduler[RoutedRequest] | None = None
        self._pump_due: asyncio.Handle | None = None
        # While the next plan is held back: the timer that calls `pump` when the plan is due.
        self._held: asyncio.TimerHandle | None = None
        self._last_tick = clock.now()
        self._run_ahead = RunAhead(config.run_ahead)
        self._patience = Patience(config.step_timeout)

    def begin(self, link: WorkerLink, core: Scheduler[RoutedRequest]) -> None:
        """Takes note that a worker was claimed. `core`: plans its steps."""
        self.link, self._core = link, core
        # A worker without a measured step has run none.
        self._patience.begin(link.hello.boot_id, is_warm=link.hello.step_seconds > 0)
        self.silent_s = 0.0

    def end(self) -> None:
        """Takes note that the worker was lost or given away, if one was claimed. The caller must then reset the
        core, which still counts the plans in flight."""
        if self.link is not None:
            self.silent_s = 0.0
        self.link = self._core = None
        self._run_ahead.lost()
        self._patience.lost()

    def give_up(self) -> None:
        """Closes the stream to a worker that sends nothing."""
        self.silent_s = 0.0
        self._patience.gave_up()
        if self.link is not None:
            self.link.cancel()

    def tick(self, now: float) -> None:
        self.silent_s += min(now - self._last_tick, _LONGEST_TICK_S)
        self._last_tick = now

    @property
    def silence(self) -> float:
        """Time without a result, in units of the time after which the worker is late. 0 if no plan is in flight."""
        return self.silent_s / self._patience.seconds if self._is_in_flight else 0.0

    @property
    def late_s(self) -> float:
        """Seconds for which the worker has been late; 0 if it is not."""
        return max(0.0, self.silent_s - self._patience.seconds) if self._is_in_flight else 0.0

    @property
    def _is_in_flight(self) -> bool:
        return self.link is not None and self._core is not None and self._core.num_in_flight > 0

    @property
    def depth(self) -> int:
        """Number of plans that are kept in flight."""
        return self._run_ahead.depth

    def pump_soon(self) -> None:
        """Calls `pump` after the callbacks that are already due, so that requests that arrive together start in one
        step."""
        if self._pump_due is None:
            self._pump_due = asyncio.get_running_loop().call_soon(self.pump)

    def pump(self) -> None:
        """Sends plans until enough of them are in flight to hide the round trip, or nothing is left to plan. Makes and
        sends each plan as late as possible, so that it includes the requests that have arrived by then. Sends none to a
        worker that is late: each further plan would give it more time."""
        for due in (self._pump_due, self._held):
            if due is not None:
                due.cancel()
        self._pump_due = self._held = None
        if self.link is None or self._core is None:
            return
        # Send grammars even if no plan can be sent now, because the worker compiles grammars while its steps run.
        self._send_preparations(self._core, self.link)
        if self.silence > 1.0:
            return
        while self._core.num_in_flight < self._run_ahead.depth:
            if not self._core.num_in_flight:
                self.silent_s = 0.0
            elif seconds := self._run_ahead.seconds_to_hold(clock.now()):
                self._held = asyncio.get_running_loop().call_later(seconds, self.pump)
                return
            plan = self._core.schedule()
            self._send_preparations(self._core, self.link)
            if plan is None:
                if self._core.is_cut_short:
                    self.pump_soon()
                return
            now = clock.now()
            report_interruptions(plan.preempted, scheduler_pb2.INTERRUPTION_REASON_PREEMPTED, self._spans)
            for new in plan.new_sequences:
                new.sequence.request.key.queue_timer.stop(now)
            seconds = self._core.expected_seconds(plan)
            self._run_ahead.sent(now, seconds)
            self._patience.sent(plan, seconds + self._core.expected_seconds_of_moves(plan))
            self.link.send(plan, self._patience.seconds)

    def on_prepared(self, message: worker_pb2.GrammarPrepared) -> None:
        """Raises WorkerLostError for an invalid message."""
        assert self._core is not None
        try:
            finished = self._core.prepared(message.key, message.error)
        except ValueError as error:
            reason = f"worker {self._address} sent an invalid message: {error}"
            raise WorkerLostError(reason, Loss.FAILED) from error
        report(finished, self._spans)
        self.pump_soon()

    def on_result(self, message: worker_pb2.StepResult) -> None:
        """Raises WorkerLostError for an invalid message."""
        assert self._core is not None
        try:
            result = result_from_proto(message)
            # Parse the whole message before applying any of it. If parsing failed later, tokens already applied would
            # never be sent to a router.
            logprobs = logprobs_from_proto(message.logprobs) if message.HasField("logprobs") else {}
            outcome = self._core.apply(result)
        except (ValueError, IndexError) as error:
            reason = f"worker {self._address} sent an invalid message: {error}"
            raise WorkerLostError(reason, Loss.FAILED) from error
        self.silent_s = 0.0
        sent_at = self._run_ahead.answered(clock.now())
        self._patience.answered()
        # Send the next plan before the tokens go to the routers, because the device waits for the plan.
        self.pump()
        timings = message.timings
        # Seconds from the sending of this result's plan to the sending of the next plan, without the time that this
        # result's plan waited at the worker.
        round_trip = clock.now() - sent_at - timings.queue_us / 1e6
        self._run_ahead.observe(round_trip, timings.run_us / 1e6)
        deliver(outcome, result, logprobs, self._spans)

    @staticmethod
    def _send_preparations(core: Scheduler[RoutedRequest], link: WorkerLink) -> None:
        for preparation in core.preparations.take_wanted():
            link.prepare(preparation)
