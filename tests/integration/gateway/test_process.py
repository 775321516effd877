"""The gateway as a process: what it listens on, how it stops, what it says when it cannot start."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import sys
from pathlib import Path

import grpc
import pytest
from prometheus_client import ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from quire.cli.http_probe import ask
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S
from tests.integration.gateway.client import call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.gateway.fake_router import FakeRouter, aborting, event, waiting_for
from tests.unit.cli.processes import children, until_ended

CHAT = "/v1/chat/completions"


def listening_addresses(pid: int) -> set[str]:
    """IPv4 addresses, in /proc's hex form with the port, that a process and its children listen on."""
    folders = [Path(f"/proc/{one}/fd") for one in (pid, *children(pid))]
    links = {link.readlink().name for folder in folders for link in folder.iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links}


async def test_only_the_port_for_clients_is_open(short_directory: Path) -> None:
    gateway = await start_gateway(short_directory, ["127.0.0.1:1"], "--host", "0.0.0.0")
    port = int(gateway.address.rpartition(":")[2])
    try:
        assert listening_addresses(gateway.process.pid) == {f"00000000:{port:04X}"}
    finally:
        await gateway.stop()


async def test_a_socket_takes_the_place_of_the_port(short_directory: Path, router: FakeRouter) -> None:
    address = f"unix:{short_directory}/gateway.sock"
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], "--listen", address)
    try:
        assert gateway.url == address
        assert listening_addresses(gateway.process.pid) == set()
        assert (await ask(address, "/health")).status == 200
        assert (await ask(address, "/nowhere")).status == 404
    finally:
        await gateway.stop()


async def test_an_admin_port_is_on_loopback_only(short_directory: Path) -> None:
    admin = free_port()
    gateway = await start_gateway(short_directory, ["127.0.0.1:1"], "--host", "0.0.0.0", "--admin-port", str(admin))
    try:
        assert f"0100007F:{admin:04X}" in listening_addresses(gateway.process.pid)
        assert (await call(f"127.0.0.1:{admin}", "GET", "/ready")).status == 200
    finally:
        await gateway.stop()


async def test_the_metrics_port_shows_metrics_and_nothing_else_of_the_admin_interface(short_directory: Path) -> None:
    metrics = f"127.0.0.1:{free_port()}"
    gateway = await start_gateway(short_directory, ["127.0.0.1:1"], "--metrics-port", metrics.rpartition(":")[2])
    try:
        scraped = (await call(metrics, "GET", "/metrics")).body.decode()
        families = {one.name: one.samples for one in text_string_to_metric_families(scraped)}
        assert "envoy_http_downstream_rq_active" in families
        assert [(sample.labels, sample.value) for sample in families["quire:discovery_parts"]] == [
            ({"kind": "router", "state": "fresh"}, 1),
            ({"kind": "router", "state": "stale"}, 0),
        ]
        (envoy,) = children(gateway.process.pid)
        of_envoy = {one.name: one.samples for one in ProcessCollector(registry=None, pid=lambda: envoy).collect()}
        assert families["process_start_time_seconds"] == of_envoy["process_start_time_seconds"]
        for method, path in (("POST", "/quitquitquit"), ("GET", "/config_dump"), ("GET", "/")):
            assert (await call(metrics, method, path)).status == 404
        assert (await call(metrics, "POST", "/metrics")).status == 405
    finally:
        await gateway.stop()


async def test_a_request_under_way_finishes_before_the_gateway_stops(gateway: Gateway, router: FakeRouter) -> None:
    release = asyncio.Event()
    router.script = waiting_for(release.wait(), event("1"), event("2"))
    connection = http.client.HTTPConnection(gateway.address, timeout=HANG_S)
    connection.request("POST", CHAT, b"{}")
    response = await asyncio.to_thread(connection.getresponse)
    assert await asyncio.to_thread(response.readline) == b"data: 1\n"

    gateway.process.send_signal(signal.SIGTERM)
    release.set()

    assert b"data: 2" in await asyncio.to_thread(response.read)
    assert await asyncio.wait_for(gateway.process.wait(), HANG_S) == 0


async def test_what_does_not_finish_in_time_is_cut(short_directory: Path, router: FakeRouter) -> None:
    gateway = await start_gateway(short_directory, [f"unix:{short_directory}/router.sock"], "--drain-timeout", "0.2")
    router.script = waiting_for(asyncio.Event().wait(), event("1"), event("2"))
    connection = http.client.HTTPConnection(gateway.address, timeout=HANG_S)
    connection.request("POST", CHAT, b"{}")
    await asyncio.to_thread(connection.getresponse)

    assert await asyncio.wait_for(gateway.stop(), HANG_S) == 0


async def test_killing_the_command_ends_envoy(gateway: Gateway, router: FakeRouter) -> None:
    (envoy,) = children(gateway.process.pid)

    gateway.process.kill()
    await gateway.process.wait()

    await until_ended([envoy])


async def test_envoy_shares_the_gateways_session_and_not_its_signals(gateway: Gateway) -> None:
    """Envoy alone in a session would at times get no processor time; Ctrl-C would end it before it has drained."""
    (envoy,) = children(gateway.process.pid)

    assert os.getsid(envoy) == os.getsid(gateway.process.pid)
    assert os.getpgid(envoy) == envoy


async def test_a_scrape_fails_while_envoy_does_not_answer(short_directory: Path) -> None:
    metrics = f"127.0.0.1:{free_port()}"
    gateway = await start_gateway(short_directory, ["127.0.0.1:1"], "--metrics-port", metrics.rpartition(":")[2])
    (envoy,) = children(gateway.process.pid)
    try:
        os.kill(envoy, signal.SIGSTOP)
        reply = await call(metrics, "GET", "/metrics")
        assert (reply.status, reply.body.endswith(b"admin.sock did not answer within 2 s\n")) == (503, True)
    finally:
        os.kill(envoy, signal.SIGCONT)
        await gateway.stop()


@pytest.mark.parametrize(
    ("option", "what"), [("--port", "listen"), ("--metrics-port", "serve metrics")], ids=["port", "metrics port"]
)
async def test_a_taken_port_is_told_in_a_sentence(option: str, what: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "quire.cli.main", "gateway", "--port", "0", option, str(port)),
            stderr=asyncio.subprocess.PIPE,
        )
        _, stderr = await process.communicate()

    assert process.returncode == 1
    assert stderr.decode().splitlines()[-1] == (
        f"quire gateway: cannot {what} on 127.0.0.1:{port}: address already in use; choose another port with {option}"
    )


async def test_the_access_log_has_a_json_object_per_request(gateway: Gateway, router: FakeRouter) -> None:
    router.script = aborting(grpc.StatusCode.NOT_FOUND, "no")
    reply = await call(gateway.address, "POST", CHAT, b"{}")

    await gateway.stop()

    (line,) = (json.loads(line) for line in gateway.access_log.read_text().splitlines() if CHAT in line)
    assert (line["method"], line["path"], line["status"]) == ("POST", CHAT, 404)
    assert line["request_id"] == reply.headers["x-request-id"]
    assert line["duration_ms"] >= 0
