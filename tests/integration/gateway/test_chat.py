"""`quire chat` against a server, in a pipe and in a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
import termios
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from tests.fakes.launchers import at_terminal
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S
from tests.integration.gateway.conftest import Gateway
from tests.integration.gateway.fake_router import Context, FakeRouter, aborting, error_json, event

CTRL_C, CTRL_D, UP = b"\x03", b"\x04", b"\x1b[A"


class Parrot:
    """Answers with everything that was said so far; the word `endless` makes it stop after its first piece."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    async def __call__(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        question = json.loads(request.data)
        self.requests.append(question)
        said = [f"{message['role']}:{message['content']}" for message in question["messages"]]
        for piece in ("<", "|".join(said)):
            yield chunk([{"index": 0, "delta": {"content": piece}, "finish_reason": None}])
            if said[-1] == "user:endless":
                await asyncio.Event().wait()
        yield chunk([{"index": 0, "delta": {"content": ">"}, "finish_reason": "stop"}])
        yield chunk([], usage={"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4})
        yield event("[DONE]")


def chunk(choices: list[dict[str, Any]], **more: Any) -> HttpBody:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "fake"}
    return event(json.dumps({**head, "choices": choices, **more}))


@pytest.fixture
def parrot(router: FakeRouter) -> Parrot:
    parrot = router.script = Parrot()
    return parrot


async def through_a_pipe(url: str, text: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quire.cli.main", "chat", "--url", url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await asyncio.wait_for(process.communicate(text.encode()), HANG_S)
    return process.returncode, stdout.decode(), stderr.decode()


class Terminal:
    """`quire chat` at a terminal: what a person types, and waits to see."""

    def __init__(self, url: str, state: Path) -> None:
        self._command = (sys.executable, "-m", "quire.cli.main", "chat", "--url", url)
        self._environment = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(state), "PROMPT_TOOLKIT_NO_CPR": "1"}
        self._seen = b""
        self._more = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._fd, slave = pty.openpty()
        termios.tcsetwinsize(slave, (50, 200))
        self._process = await asyncio.create_subprocess_exec(
            *at_terminal(*self._command),
            env=self._environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        asyncio.get_running_loop().add_reader(self._fd, self._read)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    async def type(self, keys: bytes) -> None:
        """At the next prompt: what comes before it, the kernel would take as lines of its own."""
        await self.see("›")
        os.write(self._fd, keys)

    def press(self, key: bytes) -> None:
        os.write(self._fd, key)

    async def see(self, text: str) -> None:
        """Waits until `text` appears after what was seen before."""
        wanted = text.encode()
        await self._until(lambda: wanted in self._seen)
        self._seen = self._seen.partition(wanted)[2]

    async def ended(self) -> int:
        return await asyncio.wait_for(self._process.wait(), HANG_S)

    async def _until(self, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(HANG_S):
                while not condition():
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"the terminal shows {self._seen!r}") from None

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # Linux's way to say that nobody is at the other end.
            asyncio.get_running_loop().remove_reader(self._fd)
            return
        self._seen += data
        self._more.set()


async def test_in_a_pipe_lines_go_in_and_answers_come_out(gateway: Gateway, parrot: Parrot) -> None:
    code, stdout, stderr = await through_a_pipe(gateway.url, "hello\n\nagain\n")

    assert (code, stderr) == (0, "")
    assert stdout == "<user:hello>\n<user:hello|assistant:<user:hello>|user:again>\n"


async def test_no_server_is_told_in_a_sentence() -> None:
    url = f"http://127.0.0.1:{free_port()}"

    assert await through_a_pipe(url, "hello\n") == (
        1,
        "",
        f"quire chat: no server answers at {url}; start one with: quire serve\n",
    )


async def test_the_servers_error_is_told(gateway: Gateway, router: FakeRouter) -> None:
    error = error_json("too long", "invalid_request_error", "messages", "context_length_exceeded")
    router.script = aborting(grpc.StatusCode.INVALID_ARGUMENT, "ignored", ("quire-error", error))

    code, stdout, stderr = await through_a_pipe(gateway.url, "hello\n")

    assert (code, stdout) == (1, "")
    assert "too long" in stderr
    assert "Traceback" not in stderr


async def test_ctrl_c_stops_the_answer_and_not_the_program(
    gateway: Gateway, router: FakeRouter, parrot: Parrot, tmp_path: Path
) -> None:
    async with Terminal(gateway.url, tmp_path) as terminal:
        await terminal.type(b"endless\r")
        await terminal.see("<")

        terminal.press(CTRL_C)

        await terminal.see("stopped")
        await asyncio.wait_for(router.cancelled.wait(), HANG_S)
        await terminal.type(b"still there\r")
        await terminal.see("user:still there>")
        await terminal.type(CTRL_D)
        assert await terminal.ended() == 0
    # What had come of the stopped answer is remembered.
    assert [message["content"] for message in parrot.requests[-1]["messages"]] == ["endless", "<", "still there"]


async def test_commands_figures_and_history(gateway: Gateway, parrot: Parrot, tmp_path: Path) -> None:
    async with Terminal(gateway.url, tmp_path) as terminal:
        await terminal.type(b"/system be brief\r")
        await terminal.see("system message set")
        await terminal.type(b"first\r")
        await terminal.see("<system:be brief|user:first>")
        await terminal.see("3 tokens, first after")
        await terminal.type(b"/reset\r")
        await terminal.see("conversation forgotten")
        await terminal.type(b"/nonsense\r")
        await terminal.see("there is no command /nonsense")
        await terminal.type(UP + UP + UP + b"\r")
        await terminal.see("<system:be brief|user:first>")
        await terminal.type(b"/exit\r")
        assert await terminal.ended() == 0

    async with Terminal(gateway.url, tmp_path) as later:
        await later.type(UP + UP + b"\r")
        await later.see("<user:first>")
        await later.type(CTRL_D)
        assert await later.ended() == 0


async def test_a_person_is_told_what_they_wait_for(gateway: Gateway, router: FakeRouter, tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await seen.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Terminal(url, tmp_path) as terminal:
        await terminal.see(f"waiting for the server at {url} to list its models ...")
        seen.set()
        assert await terminal.ended() == 1

    begun = asyncio.Event()

    async def late(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        await begun.wait()
        yield chunk([{"index": 0, "delta": {"content": "<late>"}, "finish_reason": None}])

    router.script = late
    async with Terminal(gateway.url, tmp_path) as terminal:
        await terminal.type(b"first\r")
        await terminal.see("waiting for the answer to begin ...")
        begun.set()
        await terminal.see("<late>")
