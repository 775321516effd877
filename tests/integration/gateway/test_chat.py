"""`quire chat` against a server, in a pipe and in a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from tests.integration.gateway.conftest import Gateway, free_port
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
    stdout, stderr = await asyncio.wait_for(process.communicate(text.encode()), 30)
    return process.returncode, stdout.decode(), stderr.decode()


class Terminal:
    """`quire chat` at a terminal: what a person types, and waits to see."""

    def __init__(self, url: str, state: Path) -> None:
        pid, self.fd = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm", XDG_STATE_HOME=str(state), COLUMNS="200", LINES="50")
            os.execv(sys.executable, [sys.executable, "-m", "quire.cli.main", "chat", "--url", url])
        self.pid = pid
        self.seen = b""

    def type(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    async def see(self, text: bytes) -> None:
        """Waits until `text` appears after what was seen before."""
        async with asyncio.timeout(20):
            while text not in self.seen:
                self.seen += await asyncio.to_thread(os.read, self.fd, 65536)
        self.seen = self.seen.partition(text)[2]

    async def ended(self) -> int:
        try:
            while await asyncio.to_thread(os.read, self.fd, 65536):
                pass
        except OSError:
            pass  # Linux's way to say that nobody is at the other end.
        os.close(self.fd)
        return os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, self.pid, 0))[1])


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
    terminal = Terminal(gateway.url, tmp_path)
    await terminal.see("› ".encode())
    terminal.type(b"endless\r")
    await terminal.see(b"<")

    terminal.type(CTRL_C)

    await terminal.see(b"stopped")
    await asyncio.wait_for(router.cancelled.wait(), 10)
    terminal.type(b"still there\r")
    await terminal.see(b"user:still there>")
    terminal.type(CTRL_D)
    assert await terminal.ended() == 0
    # What had come of the stopped answer is remembered.
    assert [message["content"] for message in parrot.requests[-1]["messages"]] == ["endless", "<", "still there"]


async def test_commands_figures_and_history(gateway: Gateway, parrot: Parrot, tmp_path: Path) -> None:
    terminal = Terminal(gateway.url, tmp_path)
    await terminal.see("› ".encode())
    terminal.type(b"/system be brief\r")
    await terminal.see(b"told")
    terminal.type(b"first\r")
    await terminal.see(b"<system:be brief|user:first>")
    await terminal.see(b"3 tokens, first after")
    terminal.type(b"/reset\r")
    await terminal.see(b"forgotten")
    terminal.type(b"/nonsense\r")
    await terminal.see(b"there is no /nonsense")
    terminal.type(UP + UP + UP + b"\r")
    await terminal.see(b"<system:be brief|user:first>")
    terminal.type(b"/exit\r")
    assert await terminal.ended() == 0

    later = Terminal(gateway.url, tmp_path)
    await later.see("› ".encode())
    later.type(UP + UP + b"\r")
    await later.see(b"<user:first>")
    later.type(CTRL_D)
    assert await later.ended() == 0
