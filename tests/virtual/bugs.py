"""Bugs to plant in the protocol, to prove that the simulation finds what it is for.

`python -m tests.virtual.bugs` plants one after another, runs seeds until one breaks a promise, and prints a table. Each
bug is a change of the source of one function, made in the running process.
"""

from __future__ import annotations
import __future__

import argparse
import inspect
import multiprocessing
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.record import store
from services.router import main as router_main
from services.router.dispatch.placement import Placement
from services.router.dispatch.roster import Roster
from services.router.dispatch.scheduler_connection import SchedulerConnection
from services.scheduler.core import losses, outcome
from services.scheduler.core.block_pool import BlockPool
from services.scheduler.core.kv_memory import KVMemory
from services.scheduler.core.roster import Roster as Sequences
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.trials import Trials
from services.scheduler.servicer import SchedulerServicer
from services.scheduler.sessions.session import RouterSession
from services.scheduler.worker_groups.accusations import Accusations
from services.scheduler.worker_groups.claimer import Claimer
from services.scheduler.worker_groups.worker_group import WorkerGroup
from services.scheduler.worker_groups.worker_link import WorkerLink
from services.worker.service.ownership import Ownership
from tests.fakes.fake_worker import FakeWorker
from tests.virtual.__main__ import prepare, silent


@dataclass(frozen=True, slots=True)
class Bug:
    """`owner`: the class or module with the function. `right` in its source becomes `wrong`, once."""

    what: str
    owner: Any
    function: str
    right: str
    wrong: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        original = inspect.getattr_static(self.owner, self.function)
        function = original.__func__ if isinstance(original, staticmethod) else original
        source = textwrap.dedent(inspect.getsource(function))
        if self.right not in source:
            raise LookupError(f"{self.function} does not contain {self.right!r}: plant this bug anew")
        changed = source.replace(self.right, self.wrong, 1)
        namespace: dict[str, Any] = {}
        flags = __future__.annotations.compiler_flag
        exec(compile(changed, f"<{self.what}>", "exec", flags, True), function.__globals__, namespace)
        planted = namespace[self.function]
        setattr(self.owner, self.function, planted)
        if not inspect.isclass(self.owner):
            _rebind(function, planted)
        try:
            yield
        finally:
            setattr(self.owner, self.function, original)
            if not inspect.isclass(self.owner):
                _rebind(planted, function)


def _rebind(old: Any, new: Any) -> None:
    """Replaces a function in the modules that have imported it by name."""
    name = old.__name__
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("services.") and getattr(module, name, None) is old:
            setattr(module, name, new)


BUGS = (
    # The router.
    Bug("the router does not see that tokens are missing", SchedulerConnection, "_apply",
        "if row.first_output_index > num_received:", "if False:"),
    Bug("the router drops doubled tokens with an index that is off by one", SchedulerConnection, "_apply",
        "if row.first_output_index < num_received:", "if row.first_output_index < num_received - 1:"),
    Bug("the router forgets the sequences of a lost scheduler", SchedulerConnection, "_close",
        "self._owner.on_lost(self, sequences)", "self._owner.on_lost(self, [])"),
    Bug("the router sends no abort", SchedulerConnection, "drop", "if abort:", "if False:"),
    Bug("an abort overtakes the submission of its sequence", SchedulerConnection, "_write",
        "if self._outbox:", "if self._outbox and not self._aborts:"),
    Bug("the router uses the outbox of the old stream on the new one", SchedulerConnection, "_close",
        "self._outbox.clear()", "pass"),
    Bug("requests that wait for a scheduler are never resumed", Placement, "_resume",
        "if parked in self._parked:", "if False:"),
    Bug("a sequence with a gap is dropped, but not sent again", Placement, "on_gap",
        "self._resubmit(sequence.submission, [sequence])", "pass"),
    Bug("a scheduler that is not available fails the request", Placement, "_offer_elsewhere",
        "or error.kind is ErrorKind.UNAVAILABLE", ""),
    Bug("sequences that stand still are taken away, but not sent again", Placement, "on_stalled",
        "moved = self._relieve(connection, able, others)",
        "moved = [one for one in able if others and connection.drop(one, abort=True) is None]"),
    Bug("a request is given up with the first scheduler that is lost", Placement, "on_lost",
        "> MAX_LOSSES:", "> 0:"),
    Bug("a router leaves a scheduler that discovery has lost", Roster, "_apply",
        "and not connection.is_ready", ""),
    Bug("a router does not connect to a scheduler that discovery finds again", Roster, "_remove",
        "del self._connections[connection.address]", "pass"),
    Bug("a router that stops tells its clients nothing", router_main, "drain",
        'placement.fail_all(unavailable("The server stopped before the answer was complete. Try again."))', "pass"),
    Bug("a router that stops waits for its requests for ever", router_main, "drain",
        "if not stopping.done():", "if False:"),
    Bug("a router that stops ends its requests at once", router_main, "drain", "timeout=timeout_s)", "timeout=0)"),
    Bug("a router that stops keeps its streams", Placement, "stop", "await self.roster.stop()", "pass"),
    # The scheduler and its routers.
    Bug("the sequences of a router that is gone run on", SchedulerServicer, "connect",
        "for key in list(session.unfinished.values()):", "for key in []:"),
    Bug("tokens are lost when a load report is sent with them", RouterSession, "next_messages",
        "frames.append(self._frame)", "frames += [self._frame] * (self._load is None)"),
    # The scheduler and its workers.
    Bug("the sequences of a lost worker are not planned anew", WorkerGroup, "_on_lost",
        "self.core.reset(is_exit=loss is not Loss.PLANNED)", "[]"),
    Bug("the sequences of a worker that drains are dropped", WorkerGroup, "_on_drain",
        "self._hand_over(self.core, self._ready_peers())", "self.core.drain()"),
    Bug("the worker after one that has drained counts as draining, too", WorkerGroup, "_on_lost",
        "self._is_draining = False", "pass"),
    Bug("the sequences of a lost worker reach no other group", WorkerGroup, "_hand_over",
        "group._adopt(sequences)", "pass"),
    Bug("the sequences of a silent worker are dropped", WorkerGroup, "relieve",
        "self._hand_over(self.core, peers, may_move, most)",
        "self.core.drain([peer.core for peer in peers if peer.core is not None], may_move, most)"),
    Bug("a refused claim counts as a success", Claimer, "_try",
        "self._turns.held_elsewhere(address, clock.now(), was_asked=claimant.asks_owner)\n", "pass\n"),
    Bug("a lost worker is not claimed again", Claimer, "_try",
        "self._turns.lost(address, clock.now(), has_worked=end is ServiceEnd.LOST_AT_WORK)", "pass"),
    Bug("a scheduler leaves a worker that discovery has lost", Claimer, "_apply", "and not group.is_claimed", ""),
    Bug("a worker that discovery finds again gets no work", Claimer, "_sweep",
        "del self._groups[group.address]", "pass"),
    Bug("results are not compared with their plan", Scheduler, "apply", "result.check(plan)", "pass"),
    Bug("the steps of a new epoch are counted on from the old one", Scheduler, "reset",
        "self._next_step_id = 1", "pass"),
    Bug("the plans of the old epoch stay in flight", Scheduler, "reset", "self._in_flight.clear()", "pass"),
    Bug("the prefixes of a lost worker count as computed", KVMemory, "forget_worker",
        "self.prefix_cache.clear()", "pass"),
    Bug("a wire id is used again after a preemption", Sequences, "start", "self._next_wire_id += 1", "pass"),
    Bug("a preempted sequence goes on from its planned position", Sequences, "_leave",
        "sequence.num_planned_tokens = len(sequence.token_ids)", "pass"),
    Bug("the worker is not told of sequences that have ended", Sequences, "take_released",
        "return released", "return array(U32)"),
    Bug("blocks are freed twice", BlockPool, "release",
        "self._blank.append(block_id)", "self._blank.extend((block_id, block_id))"),
    Bug("the blocks of a sequence that leaves are not freed", KVMemory, "release",
        "self.pool.release(sequence.block_ids)", "self.pool.release(sequence.block_ids[:-1])"),
    Bug("prefixes are published for a sequence that was preempted", outcome, "publish_blocks",
        "if sequence.wire_id == wire_id:", "if sequence.wire_id:"),
    Bug("a request that ends its workers runs again and again", losses, "lose_worker",
        "if is_alone and sequence.suspicion >= EXIT_ALONE:", "if False:"),
    Bug("requests are blamed for exits at which others ran, too", losses, "lose_worker",
        "is_alone = len(in_flight_wire_ids) + len(being_made) == 1", "is_alone = True"),
    Bug("a worker that is given up counts as one that has exited", WorkerGroup, "_on_lost",
        "is_exit=loss is not Loss.PLANNED", "is_exit=True"),
    Bug("a connection that was cut counts as an exit", Accusations, "settle",
        "if exit_.boot_id != boot_id:", "if True:"),
    Bug("an exit counts as a connection that was cut", Accusations, "settle",
        "if exit_.boot_id != boot_id:", "if False:"),
    Bug("a proof that a worker did not exit is not heard after the move", SchedulerConnection, "_settle",
        "suspicion.settle(loss.num_losses)", "suspicion.settle(3)"),
    Bug("a request waits for a proof for ever", Placement, "on_settled", "self.on_blamed(sequence, error)", "pass"),
    Bug("suspects do not run", Trials, "candidates", "return ranked[:_MAX_CONSIDERED]", "return []"),
    Bug("the claim of a link that failed stays open", WorkerLink, "close", "await self._channel.close()", "pass"),
    # The worker.
    Bug("a worker takes a second owner", Ownership, "take", "if self._owner is None:", "if True:"),
    Bug("a worker that has lost its owner stays held", FakeWorker, "serve", "self.ownership.release()", "pass"),
    Bug("a contender gets no answer although the owner has left", Ownership, "release",
        "self._answer.set_result(True)", "pass"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    bug: int
    num_seeds: int
    seconds: float
    violation: str | None


@dataclass(frozen=True, slots=True)
class _Search:
    """Runs seeds from 1 on, until one breaks a promise."""

    max_seeds: int

    def __call__(self, bug: int) -> Found:
        started = time.process_time()
        with BUGS[bug].planted():
            for seed in range(1, self.max_seeds + 1):
                violation = silent(seed).violation
                if violation is not None:
                    return Found(bug, seed, time.process_time() - started, violation)
        return Found(bug, self.max_seeds, time.process_time() - started, None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.virtual.bugs", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--only", help="plant only the bugs whose names contain this text")
    parser.add_argument("--seeds", type=int, default=5000, help="number of seeds after which a bug counts as not found")
    parser.add_argument("--store", action="store_true", help="store in benchmarks/results how many seeds each bug took")
    options = parser.parse_args()
    chosen = [index for index, bug in enumerate(BUGS) if options.only is None or options.only in bug.what]
    print(f"{'seeds':>6}  {'CPU s':>6}  bug")
    seeds_of: dict[str, float] = {}
    with multiprocessing.Pool(options.jobs, prepare) as pool:
        for found in pool.imap_unordered(_Search(options.seeds), chosen):
            if found.violation is not None:
                seeds_of[BUGS[found.bug].what] = found.num_seeds
            seeds = str(found.num_seeds) if found.violation is not None else f">{found.num_seeds}"
            print(f"{seeds:>6}  {found.seconds:6.1f}  {BUGS[found.bug].what}: {(found.violation or 'not found')[:110]}",
                  flush=True)  # fmt: skip
    print(f"{len(seeds_of)} of {len(chosen)} planted bugs found within {options.seeds} seeds each")
    if options.store:
        store("virtual_bugs", dict(sorted(seeds_of.items(), key=lambda item: item[1])))
    return len(seeds_of) < len(chosen)


if __name__ == "__main__":
    sys.exit(main())
