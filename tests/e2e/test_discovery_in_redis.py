"""The four parts, started one by one with --redis and nothing else, find each other in a real Redis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.fakes.ports import free_port, free_ports
from tests.fakes.redis_server import RedisServer, needs_redis, redis_server
from tests.fakes.waiting import HANG_S, wait_until

pytestmark = needs_redis


@contextmanager
def part(redis: RedisServer, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "QUIRE_REDIS": redis.url}
    process = subprocess.Popen([sys.executable, "-m", "quire", name, *options], env=environment, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def addresses(redis: RedisServer, kind: str) -> list[bytes]:
    fields = redis.command("HKEYS", f"quire:{kind}:parts")
    assert isinstance(fields, list)
    return sorted(field for field in fields if field)


def chat(port: int) -> str:
    """Returns the answer, or nothing while there is none."""
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as response:
            return str(json.load(response)["choices"][0]["message"]["content"])
    except (urllib.error.URLError, ConnectionError):
        return ""


def worker_is_fresh(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        return 'quire:discovery_parts{kind="worker",state="fresh"} 1.0' in response.read().decode()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


def test_parts_find_each_other_and_a_part_that_stops_deregisters_first(redis: RedisServer) -> None:
    worker, scheduler, router, metrics = free_ports(4)
    port = free_port()
    with (
        part(redis, "gateway", "--port", str(port)),
        part(redis, "router", "--listen", f"127.0.0.1:{router}"),
        part(
            *(redis, "scheduler", "--listen", f"127.0.0.1:{scheduler}"),
            *("--advertise", f"localhost:{scheduler}", "--metrics-port", str(metrics)),
        ),
        part(redis, "worker", "--listen", f"0.0.0.0:{worker}", "--device", "cpu") as stopping,
    ):
        wait_until(lambda: chat(port) != "", interval=0.2)
        assert addresses(redis, "worker") == [f"127.0.0.1:{worker}".encode()]
        assert addresses(redis, "scheduler") == [f"localhost:{scheduler}".encode()]
        assert addresses(redis, "router") == [f"127.0.0.1:{router}".encode()]
        registered = redis.command("HGET", "quire:worker:parts", f"127.0.0.1:{worker}")
        assert isinstance(registered, bytes)
        assert json.loads(registered)["kv_tokens"] > 0
        wait_until(lambda: worker_is_fresh(metrics), interval=0.2)
        # A request still runs after Redis has lost everything, and all parts register again.
        redis.command("FLUSHALL")
        assert chat(port) != ""
        wait_until(lambda: all(addresses(redis, kind) for kind in ("worker", "scheduler", "router")), interval=0.1)
        stopping.terminate()
        wait_until(lambda: addresses(redis, "worker") == [], interval=0.02)
        stopping.wait(HANG_S)
        assert stopping.returncode == 0


@pytest.mark.parametrize("name", ["worker", "scheduler", "router", "gateway"])
def test_a_redis_that_cannot_be_read_stops_the_start(name: str) -> None:
    command = [sys.executable, "-m", "quire", name, "--redis", "redis://user:secret@redis"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 1
    assert "QUIRE_REDIS_PASSWORD" in result.stderr
    assert "secret" not in result.stderr
