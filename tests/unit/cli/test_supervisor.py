"""The supervisor's promises, with parts that do nothing but what a test tells them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quire.cli import restarts, supervisor
from quire.cli.part import PartSpec
from quire.cli.supervisor import StackError, Supervisor
from shared.status import Status
from tests.fakes.waiting import HANG_S, until
from tests.unit.cli.processes import is_running, until_ended

FAKE_PART = Path(__file__).with_name("fake_part.py")


class Recorder:
    """A display that keeps what it is told, and tells when a note comes."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lines: list[tuple[str, str]] = []
        self.ready: list[str] = []
        self.changed = asyncio.Event()

    def on_status(self, name: str, status: Status) -> None:
        if status.state == "ready":
            self.ready.append(name)
        self.changed.set()

    def on_line(self, name: str, line: str) -> None:
        self.lines.append((name, line))

    def note(self, text: str) -> None:
        self.notes.append(text)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


def part(name: str, words: str, *, stop_timeout: float = 10.0, kind: str = "", is_awaited: bool = True) -> PartSpec:
    command = (sys.executable, "-IS", str(FAKE_PART), name, *words.split())
    return PartSpec(name, command, stop_timeout, kind, is_awaited=is_awaited)


def environment_of(pid: int) -> dict[str, str]:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(variable).split("=", 1) for variable in variables if variable)


async def works() -> str | None:
    return None


class Stack:
    """A supervisor under way, and what a person at its terminal would do and see."""

    def __init__(self, *specs: PartSpec, check: Callable[[], Awaitable[str | None]] = works) -> None:
        self.display = Recorder()
        self.stop, self.hurry, self.ready = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.supervisor = Supervisor(specs, os.environ, self.display, check)

    async def on_ready(self) -> None:
        self.ready.set()

    async def run(self) -> None:
        async with asyncio.timeout(HANG_S):
            await self.supervisor.run(self.stop, self.hurry, self.on_ready)

    def pids(self) -> list[int]:
        return [one.pid for one in self.supervisor._parts.values()]


async def test_the_stack_is_ready_when_every_part_is_and_it_answers_as_a_whole() -> None:
    answers = iter(["not yet", "not yet", None])
    asked_when: list[list[str]] = []

    async def check() -> str | None:
        asked_when.append(sorted(stack.display.ready))
        return next(answers)

    stack = Stack(part("a", "ready wait"), part("b", "ready wait"), check=check)
    running = asyncio.create_task(stack.run())
    await asyncio.wait_for(stack.ready.wait(), HANG_S)

    assert asked_when == [["a", "b"]] * 3
    stack.stop.set()
    await running
    assert not any(map(is_running, stack.pids()))


async def test_parts_stop_one_after_the_other_in_the_order_given(tmp_path: Path) -> None:
    log = tmp_path / "log"
    names = ["gateway", "router", "scheduler", "worker"]
    stack = Stack(*(part(name, f"log {log} ready wait") for name in names))
    running = asyncio.create_task(stack.run())
    await stack.ready.wait()

    stack.stop.set()
    await running

    assert log.read_text().split() == names


async def test_parts_of_one_kind_stop_at_the_same_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    stack = Stack(
        part("router-0", "stubborn ready wait", stop_timeout=1000.0, kind="router"),
        part("router-1", f"log {log} ready wait", kind="router"),
        part("worker", f"log {log} ready wait", kind="worker"),
    )
    running = asyncio.create_task(stack.run())
    await stack.ready.wait()

    stack.stop.set()
    await until(log.exists)
    await until(lambda: not is_running(stack.pids()[1]))
    assert log.read_text().split() == ["router-1"], "its stop did not wait for router-0, and the worker waits for both"
    stack.hurry.set()
    await running


async def test_the_stack_is_ready_without_a_part_that_it_does_not_await() -> None:
    stack = Stack(part("a", "ready wait"), part("b", "wait", is_awaited=False))
    running = asyncio.create_task(stack.run())
    await stack.ready.wait()
    assert stack.display.ready == ["a"]
    stack.stop.set()
    await running


async def test_a_part_gets_its_own_environment_variables(tmp_path: Path) -> None:
    spec = replace(part("a", "ready wait"), environment={"CUDA_VISIBLE_DEVICES": "7"})
    stack = Stack(spec)
    running = asyncio.create_task(stack.run())
    await stack.ready.wait()
    variables = environment_of(stack.pids()[0])
    assert variables["CUDA_VISIBLE_DEVICES"] == "7"
    assert os.environ.items() - {("CUDA_VISIBLE_DEVICES", "7")} <= variables.items()
    stack.stop.set()
    await running


async def test_a_part_that_fails_at_the_start_stops_everything_with_its_own_reason() -> None:
    stack = Stack(part("a", "ready wait"), part("b", "failed no-such-model"))

    with pytest.raises(StackError, match=r"^b failed: no-such-model$"):
        await stack.run()

    assert not stack.ready.is_set()
    assert not any(map(is_running, stack.pids()))


async def test_a_part_that_dies_without_a_word_is_told_by_its_last_lines() -> None:
    stack = Stack(part("a", "ready wait"), part("b", "say one say two exit 3"))

    with pytest.raises(StackError, match=r"^b failed: ended with status 3\n  \| one\n  \| two$"):
        await stack.run()

    assert stack.display.lines == [("b", "one"), ("b", "two")]


async def test_a_program_that_is_not_there_is_told() -> None:
    stack = Stack(part("a", "ready wait"), PartSpec("b", ("/no/such/program",)))

    with pytest.raises(StackError, match=r"b failed: .*\n.*cannot run /no/such/program: .*No such file"):
        await stack.run()

    assert not any(map(is_running, stack.pids()))


async def test_a_part_that_crashes_later_is_started_again(tmp_path: Path) -> None:
    stack = Stack(part("a", "ready wait"), part("b", f"once {tmp_path}/crashed ready wait later ready wait"))
    running = asyncio.create_task(stack.run())
    await stack.ready.wait()
    first = stack.pids()

    os.kill(first[1], 9)
    await stack.display.until(lambda: stack.display.ready.count("b") == 2)

    assert stack.display.notes == ["b: was killed by SIGKILL; starting it again in 0.1 s"]
    assert stack.pids()[0] == first[0]
    assert stack.pids()[1] != first[1]
    stack.stop.set()
    await running


async def test_a_part_that_keeps_crashing_stops_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "BACKOFF_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(restarts, "WINDOW_S", HANG_S)
    crashing = part("b", f"once {tmp_path}/started ready wait later say bad exit 1")
    stack = Stack(part("a", "ready wait"), crashing)
    running = asyncio.create_task(stack.run())
    await stack.ready.wait()

    os.kill(stack.pids()[1], 9)

    with pytest.raises(
        StackError, match=r"^b failed for the fourth time within a minute: ended with status 1\n  \| bad$"
    ):
        await running
    assert len(stack.display.notes) == 3
    assert not any(map(is_running, stack.pids()))


async def test_a_stack_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ANSWER_TIMEOUT_S", 0.1)

    async def check() -> str | None:
        return "GET /health answers 503"

    with pytest.raises(StackError, match="GET /health answers 503"):
        await Stack(part("a", "ready wait"), check=check).run()


async def test_a_part_that_ignores_sigterm_is_killed() -> None:
    stack = Stack(part("a", "stubborn ready wait", stop_timeout=0.1))
    running = asyncio.create_task(stack.run())
    await stack.ready.wait()

    stack.stop.set()
    await running

    assert not any(map(is_running, stack.pids()))


async def test_hurry_kills_at_once() -> None:
    stack = Stack(part("a", "stubborn ready wait", stop_timeout=1000.0), part("b", "ready wait"))
    running = asyncio.create_task(stack.run())
    await stack.ready.wait()
    stack.stop.set()

    stack.hurry.set()
    await running

    assert not any(map(is_running, stack.pids()))


async def test_stopping_during_the_start_leaves_nothing() -> None:
    stack = Stack(part("a", "ready wait"), part("b", "wait"))
    running = asyncio.create_task(stack.run())
    await stack.display.until(lambda: stack.display.ready == ["a"])

    stack.stop.set()
    await running

    assert not stack.ready.is_set()
    assert not any(map(is_running, stack.pids()))


async def test_what_a_part_started_itself_ends_with_it(tmp_path: Path) -> None:
    stack = Stack(part("a", f"child {tmp_path}/pid ready wait"))
    running = asyncio.create_task(stack.run())
    await stack.ready.wait()
    grandchild = int((tmp_path / "pid").read_text())
    assert is_running(grandchild)

    stack.stop.set()
    await running

    await until_ended([grandchild])
