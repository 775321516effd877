"""One part of the local stack: a child process that reports the progress of its start on a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quire.cli.child import bound_to_parent
from shared.status import Status, parse_status

KEPT_LINES = 20


@dataclass(frozen=True, slots=True)
class PartSpec:
    """How to run a part of the stack, such as the router. `name`: unique in the stack, such as worker-0. `argv`: its
    command, to which `--status-fd N` is added. `stop_timeout`: seconds from SIGTERM to SIGKILL. `kind`: parts of one
    kind that follow each other are stopped at the same time; empty: the part is stopped alone. `environment`: variables
    in addition to those of all parts. `is_awaited`: the stack is ready only once this part is."""

    name: str
    argv: tuple[str, ...]
    stop_timeout: float = 10.0
    kind: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    is_awaited: bool = True


class PartObserver(Protocol):
    def on_status(self, name: str, status: Status) -> None: ...

    def on_line(self, name: str, line: str) -> None:
        """Called with each line of the part's standard error."""


class Part:
    """A running part. Its process leads a session of its own: the terminal's signals do not reach the part, and the
    part's child processes can be killed together with it."""

    def __init__(self, spec: PartSpec, process: asyncio.subprocess.Process) -> None:
        self.spec = spec
        self.status = Status("starting")
        self._process = process
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._readers: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, spec: PartSpec, environment: Mapping[str, str], observer: PartObserver) -> Part:
        """Starts the part. Raises OSError if the system cannot start another process. If the program cannot be run, the
        part ends at once with status 1."""
        # Create the pipes with os.pipe. With pipes that asyncio creates, `wait()` would return only after every process
        # has closed them, and a child process of the part can hold them open longer than the part runs.
        status_reader, status_writer = os.pipe()
        lines_reader, lines_writer = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *bound_to_parent(*spec.argv, "--status-fd", str(status_writer)),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=lines_writer,
                pass_fds=(status_writer,),
                env={**environment, **spec.environment},
                start_new_session=True,
            )
        except OSError:
            os.close(status_reader)
            os.close(lines_reader)
            raise
        finally:
            os.close(status_writer)
            os.close(lines_writer)
        part = cls(spec, process)
        part._readers = [
            asyncio.create_task(_read(status_reader, lambda line: part._on_status(line, observer))),
            asyncio.create_task(_read(lines_reader, lambda line: part._on_line(line, observer))),
        ]
        return part

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def ended(self) -> str:
        """Waits for the process to end and returns the reason: the failure that the part reported, else its exit status
        and last log lines."""
        code = await self._process.wait()
        # Kill the remaining processes of the session. As long as they hold the pipes open, the readers cannot end.
        self.kill()
        await asyncio.wait(self._readers, timeout=1)
        for reader in self._readers:
            reader.cancel()
        if self.status.state == "failed":
            return self.status.detail
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return "\n".join([how, *(f"  | {line}" for line in self._lines)])

    def terminate(self) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """Kills the part and all processes in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Sends the part SIGTERM and waits for its end. Kills the part if it has not ended after `stop_timeout`
        seconds."""
        self.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), self.spec.stop_timeout)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def _on_status(self, line: bytes, observer: PartObserver) -> None:
        with contextlib.suppress(ValueError, TypeError):
            self.status = parse_status(line)
            observer.on_status(self.spec.name, self.status)

    def _on_line(self, line: bytes, observer: PartObserver) -> None:
        text = line.decode(errors="replace").rstrip()
        self._lines.append(text)
        observer.on_line(self.spec.name, text)


async def _read(fd: int, on_line: Callable[[bytes], None]) -> None:
    """Calls `on_line` with each line from the pipe `fd` until the pipe ends, then closes `fd`."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    try:
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                continue  # The line is longer than the reader's limit: drop it.
            if not line:
                return
            on_line(line)
    finally:
        transport.close()
