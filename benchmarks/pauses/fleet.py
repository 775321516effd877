"""Routers, schedulers and workers as processes that can be killed, suspended and started again."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.stack import wait_serving
from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from shared.python_child import child_environment, python_command

# Token that the first fake worker samples; the next worker samples the next one.
FIRST_TOKEN_ID = 100
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Shape:
    """How many of each part there are, and the sequences in a step of a fake worker. `has_links`: whether there is a
    link, which can be suspended, from each router to each scheduler, and from each scheduler to each worker."""

    routers: int = 1
    schedulers: int = 2
    workers: int = 4
    max_num_seqs: int = 256
    has_links: bool = False


class Process:
    """A part that runs until the block ends."""

    def __init__(self, address: str, command: Sequence[str]) -> None:
        self.address = address
        self._command = command
        self._environment = child_environment() | {"OMP_NUM_THREADS": "1"}
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> None:
        """Waits until the process has ended. Raises subprocess.TimeoutExpired."""
        self._process.wait(TIMEOUT_S)

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Fleet:
    """`model`: directory of the workers' model; without one, the workers are fakes."""

    def __init__(self, directory: Path, shape: Shape, model: str, stack: ExitStack) -> None:
        main = "quire.cli.main"
        self.shape = shape
        self.has_fakes = not model
        self._plans = directory / "plans"

        def addresses(letter: str, number: int) -> list[str]:
            return [f"unix:{directory / letter}{index}" for index in range(number)]

        def start(address: str, *words: str) -> Process:
            return stack.enter_context(Process(address, python_command(*words)))

        workers, schedulers = addresses("w", shape.workers), addresses("s", shape.schedulers)
        if model:
            of_model = ("--num-threads", "1", "--num-gpu-blocks-override", "2048")
            self.workers = [start(one, main, "worker", model, "--listen", one, *of_model) for one in workers]
        else:
            of_fakes = (str(shape.max_num_seqs), str(self._plans))
            self.workers = [
                start(one, "benchmarks.pauses.worker", one, str(FIRST_TOKEN_ID + index), *of_fakes)
                for index, one in enumerate(workers)
            ]
        # The processes of links, by the addresses of their caller and their callee.
        self.links: dict[tuple[str, str], Process] = {}

        def linked(caller: str, callee: str) -> str:
            """Returns the address at which `caller` reaches `callee`."""
            if not shape.has_links:
                return callee
            listen = f"unix:{directory / f'l{len(self.links)}'}"
            self.links[caller, callee] = start(listen, "benchmarks.pauses.link", listen, callee)
            return listen

        def options(caller: str, name: str, callees: Sequence[str]) -> list[str]:
            return [word for callee in callees for word in (name, linked(caller, callee))]

        self.schedulers = [
            start(one, main, "scheduler", "--listen", one, *options(one, "--worker", workers)) for one in schedulers
        ]
        routers = addresses("r", shape.routers)
        self.routers = [
            start(one, main, "router", "--listen", one, *options(one, "--scheduler", schedulers)) for one in routers
        ]
        for router in routers:
            with grpc.insecure_channel(router) as channel:
                grpc.channel_ready_future(channel).result(TIMEOUT_S)
                wait_serving(channel, TIMEOUT_S)
        self.wait_whole()

    def links_of(self, part: Process) -> list[Process]:
        """Returns the links from and to a part."""
        return [link for ends, link in self.links.items() if part.address in ends]

    def links_from(self, part: Process) -> list[Process]:
        return [link for (caller, _), link in self.links.items() if caller == part.address]

    def plans_since(self, moment: float) -> list[float]:
        """Returns when fake workers began a step that has a sequence which is new to them, once for each sequence.
        Both in monotonic seconds."""
        return [at for line in self._plans.read_text().splitlines() if (at := float(line)) > moment]

    def load(self, scheduler: Process) -> scheduler_pb2.Load:
        with grpc.insecure_channel(scheduler.address) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            return stub.GetStats(scheduler_pb2.GetStatsRequest(), timeout=5).load

    def wait_whole(self) -> None:
        """Waits until each scheduler has its share of the workers."""
        share = self.shape.workers // self.shape.schedulers
        deadline = time.monotonic() + TIMEOUT_S
        while not all(self._has_workers(scheduler, share) for scheduler in self.schedulers):
            if time.monotonic() > deadline:
                raise TimeoutError("the schedulers did not share the workers")
            time.sleep(0.1)

    def is_balanced(self, num_streams: int) -> bool:
        """Whether the router gives streams to each scheduler: it needs a moment to find one that has restarted."""
        return all(self.load(one).num_running > num_streams // 4 for one in self.schedulers)

    def _has_workers(self, scheduler: Process, number: int) -> bool:
        try:
            return bool(self.load(scheduler).num_ready_groups == number)
        except grpc.RpcError:
            return False  # not up yet


@contextmanager
def running_fleet(shape: Shape = Shape(), model: str = "") -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory, ExitStack() as stack:
        yield Fleet(Path(directory), shape, model, stack)
