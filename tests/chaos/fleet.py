"""The fleet: real processes of every part, with a proxy on each link between two of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import grpc

from benchmarks.soak.figures import Identity, identities
from quire.cli.part import PartSpec
from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from shared.discovery import Kind as RegisteredKind
from shared.python_child import HOME, child_environment, python_command
from tests.chaos import GRPC_VARIABLES
from tests.chaos.history import Exit, Served
from tests.chaos.member import NO_WORKER, Kind, Member
from tests.chaos.redis_group import OPTIONS as REDIS_OPTIONS
from tests.chaos.redis_group import RedisGroup
from tests.fakes.ports import free_port
from tests.fakes.tcp_proxy import Proxy

# Small enough that sequences are preempted now and then, and large enough for the longest one.
_WORKER_OPTIONS = (
    *("--num-threads", "1", "--num-gpu-blocks-override", "192", "--max-num-seqs", "16"),
    *("--max-model-len", "1024", "--max-num-batched-tokens", "64"),
)
DRAIN_S = 10


# The caller of links that all who call a part share.
ANYBODY = "*"


@dataclass(frozen=True, slots=True)
class Group:
    """The schedulers and workers of one model. Every scheduler uses every worker. `is_found`: whether they register in
    Redis, where routers find the schedulers and these the workers. Otherwise the addresses are options."""

    model: str
    schedulers: tuple[str, ...]
    workers: tuple[str, ...]
    is_found: bool = False

    def names(self, kind: Kind) -> tuple[str, ...]:
        return {"scheduler": self.schedulers, "worker": self.workers}.get(kind, ())

    @property
    def model_directory(self) -> str:
        return str(HOME / "quire" / "models" / self.model)


@dataclass(frozen=True, slots=True)
class Shape:
    """How many of each part there are. `schedulers`, `workers`: of `model`, whose addresses are options; without
    schedulers, there is no such model. `found_model`: another model, with so many schedulers and workers, which
    register in Redis; empty: there is none."""

    gateways: int = 1
    routers: int = 2
    schedulers: int = 2
    workers: int = 4
    model: str = "quire-chat"
    # Whether workers are processes of tests.chaos.fake_worker, which start fast and have no model.
    has_fake_workers: bool = False
    found_model: str = ""
    found_schedulers: int = 2
    found_workers: int = 2

    @property
    def groups(self) -> tuple[Group, ...]:
        def names(kind: Kind, first: int, number: int) -> tuple[str, ...]:
            return tuple(f"{kind}-{index}" for index in range(first, first + number))

        given = Group(self.model, names("scheduler", 0, self.schedulers), names("worker", 0, self.workers))
        schedulers = names("scheduler", self.schedulers, self.found_schedulers)
        workers = names("worker", self.workers, self.found_workers)
        found = Group(self.found_model, schedulers, workers, is_found=True)
        return (given,) * (self.schedulers > 0) + (found,) * (self.found_model != "")

    @property
    def has_redis(self) -> bool:
        return bool(self.found_model)

    def uses_redis(self, name: str) -> bool:
        """Returns whether a part registers in Redis or finds others there."""
        group = self.group_of(name)
        return self.has_redis if group is None else group.is_found

    def names(self, kind: Kind) -> list[str]:
        number = {"gateway": self.gateways, "router": self.routers}.get(kind)
        if number is not None:
            return [f"{kind}-{index}" for index in range(number)]
        return [name for group in self.groups for name in group.names(kind)]

    def group_of(self, name: str) -> Group | None:
        """Returns the group of a scheduler or worker, None for other parts."""
        return next((group for group in self.groups if name in (*group.schedulers, *group.workers)), None)

    @property
    def links(self) -> list[tuple[str, str]]:
        """Returns each link as the names of its caller and its callee."""
        # In Redis, a router has one address for all gateways.
        links = list(product([ANYBODY] if self.has_redis else self.names("gateway"), self.names("router")))
        for group in self.groups:
            if group.is_found:
                links += [(ANYBODY, name) for name in (*group.schedulers, *group.workers)]
            else:
                links += [*product(self.names("router"), group.schedulers), *product(group.schedulers, group.workers)]
        return links

    def link(self, caller: str, callee: str) -> str:
        """Returns the name of the link by which `caller` reaches `callee`."""
        group = self.group_of(callee)
        is_found = self.has_redis if group is None else group.is_found
        return link_name(ANYBODY if is_found else caller, callee)


# The fleet of `make chaos`. The addresses of one model are options, and the parts of the other find each other in
# Redis, as the gateway finds the routers, so links can fail one by one, and Redis, too.
STORM = Shape(gateways=2, workers=3, found_model="quire-chat-draft")


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
        self.host, self.ports = "127.0.0.1", {name: free_port() for name in shape.names("gateway")}
        self.processes: set[Identity] = set()
        self._directory = directory
        self._clock = clock
        self._record = record
        self._is_started = False
        # Set with a description when a part ends during the fleet's start.
        self._broken = asyncio.get_running_loop().create_future()
        self.links = {
            link_name(caller, callee): Proxy(free_port(), self.address(callee)) for caller, callee in shape.links
        }
        self.redis = RedisGroup(directory / "redis") if shape.has_redis else None
        # Parts by name, once the fleet has started.
        self.members: dict[str, Member] = {}

    def address(self, name: str) -> str:
        """Returns the address at which a router, scheduler or worker itself listens."""
        return f"unix:{self.runtime}/{name}.sock"

    def of_kind(self, kind: Kind) -> list[Member]:
        return [self.members[name] for name in self.shape.names(kind) if name in self.members]

    async def not_registered(self) -> list[str]:
        """Waits until Redis knows the parts of the fleet that register there, and no other. Describes what differs."""
        if self.redis is None:
            return []
        found = [group for group in self.shape.groups if group.is_found]
        names = {
            RegisteredKind.ROUTER: self.shape.names("router"),
            RegisteredKind.SCHEDULER: [name for group in found for name in group.schedulers],
            RegisteredKind.WORKER: [name for group in found for name in group.workers],
        }
        expected = {
            kind: {self.links[link_name(ANYBODY, name)].address for name in those if self.members[name].is_kept}
            for kind, those in names.items()
        }
        return await self.redis.not_registered(expected)

    def use_release(self, name: str, tree: Path | None) -> None:
        """Lets the next start of a part run the release that is installed in `tree`; None: this one."""
        self.members[name].spec = self._spec(self.members[name].kind, name, tree)

    async def start(self, *left_out: str) -> None:
        """Starts Redis, the proxies and all parts but those left out. Raises FleetError if a part does not start."""
        await asyncio.gather(*(proxy.up() for proxy in self.links.values()))
        if self.redis is not None:
            await self.redis.start()
        self.members = {
            name: self._member(kind, name)
            for kind in ("worker", "scheduler", "router", "gateway")
            for name in self.shape.names(kind)
        }
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
        found = {group.model for group in self.shape.groups if group.is_found}
        if found:
            routers = (self.address(name) for name in self.shape.names("router"))
            await asyncio.gather(*(self._serves(server, found) for server in routers))
            await asyncio.gather(*(self._serves(f"{self.host}:{port}", found) for port in self.ports.values()))
        self._is_started = True

    async def wait_up(self) -> None:
        """Waits until every part of the fleet serves. Raises TimeoutError if one does not."""
        await asyncio.gather(*(member.wait_up() for member in self.members.values() if member.is_kept))

    async def _serves(self, server: str, models: set[str]) -> None:
        """Waits until a router or the gateway serves these models. They are ready before they have found the parts that
        register in Redis."""
        async with grpc.aio.insecure_channel(server) as channel:
            stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    response = await stub.ListModels(inference_pb2.ListModelsRequest(), wait_for_ready=True)
                    if models <= {model.name for model in response.models}:
                        return
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """Ends every part, gateway first, as `quire serve` does, and then the proxies."""
        self.note_processes()
        for kind in ("gateway", "router", "scheduler", "worker"):
            await asyncio.gather(*(member.stop() for member in self.of_kind(kind)))
        if self.redis is not None:
            await self.redis.stop()
        await asyncio.gather(*(proxy.down() for proxy in self.links.values()))

    def note_processes(self) -> None:
        """Remembers all processes that run now, to find those that outlive the run."""
        self.processes |= identities(member.pid for member in self.members.values() if member.pid is not None)

    def served(self) -> Iterator[Served]:
        """Yields which router answered which call, according to the gateways' access logs."""
        for gateway in self.shape.names("gateway"):
            names = self.shape.names("router")
            routers = {self.links[self.shape.link(gateway, name)].address: name for name in names}
            log = self._access_log(gateway)
            for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue  # The gateway was killed while it wrote this line.
                if entry["router"] in routers:
                    yield Served(str(entry["request_id"]), routers[entry["router"]])

    def _access_log(self, gateway: str) -> Path:
        return self._directory / f"{gateway}-access.log"

    def _spec(self, kind: Kind, name: str, tree: Path | None = None) -> PartSpec:
        if kind == "worker" and self.shape.has_fake_workers:
            command = python_command("tests.chaos.fake_worker", "--listen", self.address(name), *self._joining(name))
        else:
            command = python_command("quire", kind, *self._options(kind, name))
        environment = {} if tree is None else {"PYTHONPATH": str(tree)}
        return PartSpec(name, command, stop_timeout=DRAIN_S + 20.0, environment=environment)

    def _member(self, kind: Kind, name: str) -> Member:
        environment = child_environment() | {"TMPDIR": str(self.runtime), "OMP_NUM_THREADS": "1"}
        for variable in GRPC_VARIABLES:
            environment.pop(variable, None)
        # Fake workers do not share themselves out: one scheduler can have all of them.
        enough = NO_WORKER if self.shape.has_fake_workers else None
        return Member(kind, self._spec(kind, name), environment, self._directory / f"{name}.log", self._on_exit, enough)

    def _options(self, kind: Kind, name: str) -> list[str]:
        callees = [callee for caller, callee in self.shape.links if caller == name]
        below = [self.links[link_name(name, callee)].address for callee in callees]
        if kind == "gateway":
            own = ["--host", self.host, "--port", str(self.ports[name]), "--access-log", str(self._access_log(name))]
            own += ["--drain-timeout", str(DRAIN_S)]
            if self.redis is not None:
                return [*own, "--redis", self.redis.url, *REDIS_OPTIONS]
            return [*own, *(word for address in below for word in ("--router", address))]
        own = ["--listen", self.address(name)]
        if kind == "router":
            own += ["--drain-timeout", str(DRAIN_S)]
            if self.redis is not None:
                own += self._registration(self.redis, self.links[link_name(ANYBODY, name)].address)
            return [*own, *(word for address in below for word in ("--scheduler", address))]
        group = self.shape.group_of(name)
        assert group is not None
        own += self._joining(name)
        if kind == "scheduler":
            return [*own, *(word for address in below for word in ("--worker", address))]
        return [group.model_directory, *own, *_WORKER_OPTIONS]

    def _joining(self, name: str) -> list[str]:
        """Returns the options with which a scheduler or worker registers in Redis, if it does."""
        group = self.shape.group_of(name)
        if self.redis is None or group is None or not group.is_found:
            return []
        return self._registration(self.redis, self.links[link_name(ANYBODY, name)].address)

    @staticmethod
    def _registration(redis: RedisGroup, address: str) -> list[str]:
        """Returns the options of a part that registers in Redis under this address."""
        return ["--redis", redis.url, *REDIS_OPTIONS, "--advertise", address]

    def _on_exit(self, part: str, how: str, was_meant: bool) -> None:
        if not self._is_started and not self._broken.done():
            self._broken.set_result(f"{part} did not start: {how}")
        self._record(Exit(part, round(self._clock(), 4), was_meant, how))
