"""The fleet: real processes of every part, with a proxy on each link between two of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.soak.figures import Identity, identities
from quire.cli.part import PartSpec
from shared.python_child import HOME, child_environment, python_command
from tests.chaos import GRPC_VARIABLES
from tests.chaos.history import Exit, Served
from tests.chaos.member import Kind, Member
from tests.fakes.ports import free_port
from tests.fakes.tcp_proxy import Proxy

# Small enough that sequences are preempted now and then, and large enough for the longest one.
_WORKER_OPTIONS = (
    *("--num-threads", "1", "--num-gpu-blocks-override", "192", "--max-num-seqs", "16"),
    *("--max-model-len", "1024", "--max-num-batched-tokens", "64"),
)
_DRAIN_S = 10


@dataclass(frozen=True, slots=True)
class Shape:
    """How many of each part there are. Every router knows every scheduler, and every scheduler every worker."""

    routers: int = 2
    schedulers: int = 2
    workers: int = 4
    model: str = "quire-chat"
    # Whether workers are processes of tests.chaos.fake_worker, which start fast and have no model.
    has_fake_workers: bool = False

    @property
    def model_directory(self) -> str:
        return str(HOME / "quire" / "models" / self.model)

    def names(self, kind: Kind) -> list[str]:
        if kind == "gateway":
            return ["gateway"]
        number = {"router": self.routers, "scheduler": self.schedulers, "worker": self.workers}[kind]
        return [f"{kind}-{index}" for index in range(number)]

    @property
    def links(self) -> list[tuple[str, str]]:
        """Returns each link as the names of its caller and its callee."""
        tiers: Sequence[Kind] = ("gateway", "router", "scheduler", "worker")
        return [
            (caller, callee)
            for above, below in pairwise(tiers)
            for caller in self.names(above)
            for callee in self.names(below)
        ]


def link_name(caller: str, callee: str) -> str:
    return f"{caller}>{callee}"


def runtime_of(directory: Path) -> Path:
    """Returns the directory of the parts' sockets and temporary files."""
    return directory / "run"


class FleetError(Exception):
    """The fleet did not start."""


class Fleet:
    """The processes and proxies of a shape.

    `directory`: has logs and `runtime`, the directory of the parts' sockets and temporary files. `record`: takes the
    exits of parts. `has_small_disk`: whether a small file system is mounted at `runtime`.
    """

    def __init__(
        self,
        shape: Shape,
        directory: Path,
        clock: Callable[[], float],
        record: Callable[[Exit], None],
        *,
        has_small_disk: bool = False,
    ) -> None:
        self.runtime = runtime_of(directory)
        self.has_small_disk = has_small_disk
        self.shape = shape
        self.host, self.port = "127.0.0.1", free_port()
        self.processes: set[Identity] = set()
        self._directory = directory
        self._clock = clock
        self._record = record
        self._access_log = directory / "access.log"
        self._is_started = False
        # Set with a description when a part ends during the fleet's start.
        self._broken = asyncio.get_running_loop().create_future()
        self.links = {
            link_name(caller, callee): Proxy(free_port(), self.address(callee)) for caller, callee in shape.links
        }
        self.members = {
            name: self._member(kind, name)
            for kind in ("worker", "scheduler", "router", "gateway")
            for name in shape.names(kind)
        }

    def address(self, name: str) -> str:
        """Returns the address at which a router, scheduler or worker itself listens."""
        return f"unix:{self.runtime}/{name}.sock"

    def of_kind(self, kind: Kind) -> list[Member]:
        return [self.members[name] for name in self.shape.names(kind)]

    async def start(self, *left_out: str) -> None:
        """Starts the proxies and all parts but those left out. Raises FleetError if a part does not start."""
        await asyncio.gather(*(proxy.up() for proxy in self.links.values()))
        for member in self.members.values():
            if member.name not in left_out:
                member.start()
        up = asyncio.create_task(self.wait_up())
        await asyncio.wait([up, self._broken], return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)
            raise FleetError(self._broken.result())
        await up
        self._is_started = True

    async def wait_up(self) -> None:
        """Waits until every part of the fleet serves. Raises TimeoutError if one does not."""
        await asyncio.gather(*(member.wait_up() for member in self.members.values() if member.is_kept))

    async def stop(self) -> None:
        """Ends every part, gateway first, as `quire serve` does, and then the proxies."""
        self.note_processes()
        for kind in ("gateway", "router", "scheduler", "worker"):
            await asyncio.gather(*(member.stop() for member in self.of_kind(kind)))
        await asyncio.gather(*(proxy.down() for proxy in self.links.values()))

    def note_processes(self) -> None:
        """Remembers all processes that run now, to find those that outlive the run."""
        self.processes |= identities(member.pid for member in self.members.values() if member.pid is not None)

    def served(self) -> Iterator[Served]:
        """Yields which router answered which call, according to the gateway's access log."""
        routers = {self.links[link_name("gateway", name)].address: name for name in self.shape.names("router")}
        if not self._access_log.exists():
            return
        for line in self._access_log.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # The gateway was killed while it wrote this line.
            if entry["router"] in routers:
                yield Served(str(entry["request_id"]), routers[entry["router"]])

    def _member(self, kind: Kind, name: str) -> Member:
        options = self._options(kind, name)
        if kind == "worker" and self.shape.has_fake_workers:
            command = python_command("tests.chaos.fake_worker", "--listen", self.address(name))
        else:
            command = python_command("quire", kind, *options)
        environment = child_environment() | {"TMPDIR": str(self.runtime), "OMP_NUM_THREADS": "1"}
        for variable in GRPC_VARIABLES:
            environment.pop(variable, None)
        spec = PartSpec(name, command, stop_timeout=_DRAIN_S + 20.0)
        # Fake workers do not share themselves out: one scheduler can have all of them.
        enough = "waiting for a worker" if self.shape.has_fake_workers else None
        return Member(kind, spec, environment, self._directory / f"{name}.log", self._on_exit, enough)

    def _options(self, kind: Kind, name: str) -> list[str]:
        callees = [callee for caller, callee in self.shape.links if caller == name]
        below = [self.links[link_name(name, callee)].address for callee in callees]
        if kind == "gateway":
            own = ["--host", self.host, "--port", str(self.port), "--access-log", str(self._access_log)]
            own += ["--drain-timeout", str(_DRAIN_S)]
            return [*own, *(word for address in below for word in ("--router", address))]
        own = ["--listen", self.address(name)]
        if kind == "router":
            own += ["--drain-timeout", str(_DRAIN_S)]
            return [*own, *(word for address in below for word in ("--scheduler", address))]
        if kind == "scheduler":
            return [*own, *(word for address in below for word in ("--worker", address))]
        return [self.shape.model_directory, *own, *_WORKER_OPTIONS]

    def _on_exit(self, part: str, how: str, was_meant: bool) -> None:
        if not self._is_started and not self._broken.done():
            self._broken.set_result(f"{part} did not start: {how}")
        self._record(Exit(part, round(self._clock(), 4), was_meant, how))
