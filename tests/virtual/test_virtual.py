"""The fleet keeps its promises in virtual time, and the simulation would notice if it did not."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from quire.worker.v1 import worker_pb2
from services.scheduler.worker_groups.worker_link import RUN
from shared.transport import StreamEndedError
from tests.virtual.bugs import BUGS, Bug
from tests.virtual.loop import World
from tests.virtual.nemesis import Numbers
from tests.virtual.network import Host, Network
from tests.virtual.simulation import run_seed

REPOSITORY = Path(__file__).parents[2]
NUM_SEEDS = 100
# Seeds that once broke a promise, with what the simulation had then.
ONCE_BROKEN = (
    (317, Numbers(drains=0, hides=0, hunts=0, poisons=0, late=0)),
    (63067, Numbers(hunts=0, poisons=0, late=0)),
    (70602, Numbers(hunts=0, late=0)),
    (3430, Numbers(hunts=0)),
    (8537, Numbers(hunts=0)),
    (9382, Numbers(hunts=0)),
)


def test_a_fleet_keeps_its_promises_under_the_faults_of_every_seed() -> None:
    command = [sys.executable, "-m", "tests.virtual", "--seeds", str(NUM_SEEDS), "--jobs", "2"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 seeds broke a promise" in result.stdout
    counts = re.findall(r"(?:faults|under load) \(at least (\d+)\)", result.stdout)
    assert [int(fewest) >= 3 for fewest in counts] == [True, True]


@pytest.mark.parametrize(("seed", "numbers"), ONCE_BROKEN)
def test_a_seed_that_once_broke_a_promise_keeps_it(seed: int, numbers: Numbers) -> None:
    assert run_seed(seed, numbers=numbers).violation is None


@pytest.mark.parametrize("seed", range(1, 11))
def test_drains_alone_break_no_promise(seed: int) -> None:
    """There are too few for a request to be given up."""
    outcome = run_seed(seed, numbers=Numbers(faults=0, drains=2, hides=0, hunts=0, poisons=0))
    assert outcome.violation is None
    assert outcome.faults.get("drain") == 2


@pytest.mark.parametrize("seed", range(1, 11))
def test_a_request_that_ends_its_workers_fails_and_no_other(seed: int) -> None:
    outcome = run_seed(seed, numbers=Numbers(faults=0, drains=0, hides=0, hunts=0, poisons=1))
    assert outcome.violation is None
    assert outcome.num_blamed == 1


def test_equal_seeds_give_equal_runs() -> None:
    runs: list[list[str]] = [[], []]
    for run in runs:
        run_seed(7, run.append)
    assert runs[0] == runs[1]
    assert len(runs[0]) > 10


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_every_bug_can_be_planted_in_the_code_as_it_is(bug: Bug) -> None:
    with bug.planted():
        pass


def test_a_planted_bug_is_found() -> None:
    bug = next(bug for bug in BUGS if bug.function == "_hand_over")
    with bug.planted():
        assert any(run_seed(seed).violation for seed in range(1, 200))
    assert run_seed(1).violation is None


# -- The network: what it promises, as real gRPC does (tests/integration/shared/test_transport.py) ---------------------


class Pair:
    """A client and a server, each a process of its own. The server answers each plan with a result of its step id."""

    def __init__(self, seed: int = 1, window: int = 4) -> None:
        self.world = World(seed)
        self.network = Network(self.world, window)
        self.client = Host("client", self.world.new_loop("client"))
        self.server = Host("server", self.world.new_loop("server"), "server", {RUN.path: self._serve})
        self.network.listen(self.server)
        self.received: list[int] = []
        self.read: list[int] = []
        self.ended: StreamEndedError | None = None

    async def _serve(self, stream: object) -> None:
        while (request := await stream.read()) is not None:  # type: ignore[attr-defined]
            self.received.append(request.plan.step_id)
            answer = worker_pb2.RunResponse(result=worker_pb2.StepResult(step_id=request.plan.step_id))
            await stream.write(answer)  # type: ignore[attr-defined]

    def start(self, number: int) -> None:
        """Starts to send `number` messages and to read the answers."""
        stream = self.network.channel(self.client, "server").open(RUN)

        async def write() -> None:
            for step in range(number):
                await stream.write(worker_pb2.RunRequest(plan=worker_pb2.StepPlan(step_id=step)))

        async def read() -> None:
            try:
                while True:
                    self.read.append((await stream.read()).result.step_id)
            except StreamEndedError as ended:
                self.ended = ended

        async def both() -> None:
            await asyncio.gather(write(), read(), return_exceptions=True)

        self.client.loop.call_soon(lambda: self.client.loop.create_task(both()))

    def pass_by(self, seconds: float) -> None:
        self.world.run(lambda: False, self.world.now + seconds)


def test_messages_arrive_once_and_in_order() -> None:
    pair = Pair()
    pair.start(100)
    pair.pass_by(10.0)
    assert pair.received == pair.read == list(range(100))
    pair.world.end()


@pytest.mark.parametrize("seed", range(10))
def test_a_cut_stream_delivers_a_prefix_and_both_ends_learn_of_it(seed: int) -> None:
    pair = Pair(seed, window=1000)
    pair.network.seconds = (0.5, 1.0)
    pair.start(100)
    pair.pass_by(0.9)
    (stream,) = pair.network.streams
    pair.network.cut(stream, 0.5, 3.0)
    pair.pass_by(5.0)
    assert pair.received == list(range(len(pair.received)))
    assert pair.ended is not None
    assert pair.ended.code is grpc.StatusCode.UNAVAILABLE
    assert pair.server.loop.num_tasks == 0
    pair.world.end()


def test_a_server_that_knows_of_a_cut_does_not_accept_the_call_afterwards() -> None:
    pair = Pair()
    pair.start(3)
    pair.pass_by(0.0)
    (stream,) = pair.network.streams
    stream.tell_server()
    pair.pass_by(1.0)
    assert pair.received == []
    assert pair.server.loop.num_tasks == 0
    pair.world.end()


def test_a_blocked_direction_holds_messages_until_it_is_free() -> None:
    pair = Pair()
    pair.network.block(pair.client, pair.server, 2.0)
    pair.start(3)
    pair.pass_by(1.9)
    assert pair.received == []
    pair.pass_by(0.2)
    assert pair.read == [0, 1, 2]
    pair.world.end()


def test_a_paused_process_reads_what_came_meanwhile() -> None:
    pair = Pair()
    pair.server.loop.pause()
    pair.start(3)
    pair.pass_by(1.0)
    assert pair.received == []
    pair.server.loop.resume()
    pair.pass_by(0.1)
    assert pair.received == [0, 1, 2]
    pair.world.end()


def test_a_killed_process_runs_no_more_code_and_its_peer_learns_of_it() -> None:
    pair = Pair()
    pair.start(3)
    pair.pass_by(1.0)
    pair.server.loop.kill()
    pair.network.gone(pair.server, 0.1)
    pair.pass_by(1.0)
    assert pair.ended is not None
    pair.start(1)
    pair.pass_by(1.0)
    assert pair.received == [0, 1, 2]
    pair.world.end()


def test_a_server_that_nobody_runs_is_unavailable() -> None:
    pair = Pair()
    del pair.network.listening["server"]
    pair.start(1)
    pair.pass_by(1.0)
    assert pair.ended is not None
    assert pair.ended.code is grpc.StatusCode.UNAVAILABLE
    pair.world.end()
