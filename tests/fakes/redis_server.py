"""Real Redis servers and Sentinels for tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.ports import free_port
from tests.fakes.tools import needs
from tests.fakes.waiting import wait_until

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / ".venv-redis" / "usr"
FOUND = UNPACKED / "bin" / "redis-server"
SERVER = str(FOUND) if FOUND.exists() else shutil.which("redis-server")
needs_redis = needs(SERVER, "Redis")


class RedisServer:
    """A process of redis-server or, with `is_sentinel`, of Sentinel."""

    def __init__(self, directory: Path, *options: str, port: int | None = None, is_sentinel: bool = False) -> None:
        self.port = port or free_port()
        self._directory = directory
        self._options = options
        self._is_sentinel = is_sentinel
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"redis://{self.address}"

    def start(self) -> None:
        """Starts the server, empty, and returns once it accepts connections."""
        assert SERVER is not None, "there is no Redis: make clients unpacks Debian's"
        folder = self._directory / str(self.port)
        folder.mkdir(exist_ok=True)
        arguments = ["--dir", str(folder), "--bind", "127.0.0.1", "--port", str(self.port), *self._options]
        if self._is_sentinel:
            # Sentinel writes what it learns to its configuration.
            configuration = folder / "sentinel.conf"
            configuration.write_text("".join(f"{line}\n" for line in self._options))
            arguments = [str(configuration), "--sentinel", *arguments[: -len(self._options)]]
        else:
            arguments += ["--save", "", "--repl-diskless-sync-delay", "0"]
        libraries = sorted({str(path.parent) for path in UNPACKED.glob("lib/*/lib*.so*")})
        path = ":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")])
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [SERVER, *arguments], stdout=log, stderr=log, env=os.environ | {"LD_LIBRARY_PATH": path}
            )
        wait_until(lambda: self._is_open(folder / "log"))

    def _is_open(self, log: Path) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @contextmanager
    def client(self, *, password: str = "", database: int = 0, timeout_s: float | None = None) -> Iterator[Any]:
        """Connects. A call that fails is not tried again: by default, a call to a server that is gone takes 4 s."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        with Redis(
            port=self.port, password=password or None, db=database, protocol=2, socket_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        ) as client:  # fmt: skip
            yield client

    def command(self, *words: str, password: str = "", database: int = 0) -> object:
        """Runs a command on a connection of its own and returns its reply."""
        with self.client(password=password, database=database) as client:
            return client.execute_command(*words)

    def time(self) -> tuple[int, int]:
        """Returns Redis' clock: seconds and microseconds."""
        with self.client() as client:
            seconds, microseconds = client.time()
            return int(seconds), int(microseconds)


@contextmanager
def redis_server(directory: Path, *options: str) -> Iterator[RedisServer]:
    server = RedisServer(directory, *options)
    try:
        yield server
    finally:
        server.kill()
