"""Real Prometheus and Alertmanager processes for tests."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.conftest import ROOT
from tests.fakes import dns_server
from tests.fakes.ports import free_port
from tests.fakes.waiting import HANG_S, wait_until

_UNPACKED = ROOT / ".venv-prometheus" / "usr" / "bin"
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"


def find(*names: str) -> str | None:
    """The path of a program that is unpacked or installed. Debian's names differ from the project's own."""
    found = (str(_UNPACKED / name) if (_UNPACKED / name).exists() else shutil.which(name) for name in names)
    return next((path for path in found if path), None)


def _can_mount() -> bool:
    """Whether programs can have a mount namespace of their own here."""
    command = ["unshare", "--map-root-user", "--mount", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True).returncode == 0


def in_its_place(program: str | None) -> list[str]:
    """The command that runs a program. Debian's Alertmanager reads its templates from /usr/share: if it is unpacked and
    not installed, it gets a mount namespace in which they are there. Empty if there is no program or no namespace."""
    share = _UNPACKED.parent / "share"
    if program is None or not program.startswith(str(_UNPACKED)):
        return [] if program is None else [program]
    mount = f'mount --bind {shlex.quote(str(share))} /usr/share && exec "$@"'
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    works = _can_mount() and subprocess.run([*namespace, "true"], capture_output=True).returncode == 0
    return [*namespace, program] if works else []


PROMETHEUS = find("prometheus")
ALERTMANAGER = in_its_place(find("prometheus-alertmanager", "alertmanager"))
AMTOOL = find("amtool")
# Whether Prometheus can ask a DNS server of a test.
CAN_HAVE_A_RESOLVER = _can_mount() and dns_server.may_listen()


class Prometheus:
    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **parameters: str) -> Any:
        """None while it does not answer."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url) as response:
                return json.load(response)["data"]
        except urllib.error.URLError:
            return None

    def has_data(self, query: str) -> bool:
        found = self.ask("query", query=query)
        return found is not None and any(not math.isnan(float(one["value"][1])) for one in found["result"])


@contextmanager
def running_prometheus(
    directory: Path, targets: Mapping[str, list[str]], alertmanager: str | None = None
) -> Iterator[Prometheus]:
    """Scrapes the targets of each job, and evaluates Quire's rules, every second."""
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": addresses}]} for name, addresses in targets.items()
        ],
    }
    if alertmanager is not None:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    with _prometheus((str(PROMETHEUS),), path, directory) as prometheus:
        yield prometheus


@contextmanager
def shipped_prometheus(directory: Path, name_server: str) -> Iterator[Prometheus]:
    """Runs it with the configuration of docker-compose.yml. `name_server`: address of the DNS server that it asks. It
    gets a mount namespace, in which /etc/resolv.conf names this server."""
    resolver = directory / "resolv.conf"
    resolver.write_text(f"nameserver {name_server}\noptions ndots:0\n")
    mount = f'mount --bind {shlex.quote(str(resolver))} /etc/resolv.conf && exec "$@"'
    command = ("unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", str(PROMETHEUS))
    with _prometheus(command, RULES.with_name("prometheus.yml"), directory) as prometheus:
        yield prometheus


@contextmanager
def _prometheus(program: Sequence[str], config: Path, directory: Path) -> Iterator[Prometheus]:
    address = f"127.0.0.1:{free_port()}"
    command = [
        *program, f"--config.file={config}", f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address={address}", "--log.level=warn",
    ]  # fmt: skip
    with _process(command):
        prometheus = Prometheus(address)
        wait_until(lambda: prometheus.ask("status/buildinfo") is not None, 0.1)
        yield prometheus


@contextmanager
def running_alertmanager(directory: Path, config: Mapping[str, Any]) -> Iterator[str]:
    """Yields its address."""
    (directory / "alertmanager.yml").write_text(yaml.safe_dump(dict(config)))
    address = f"127.0.0.1:{free_port()}"
    command = [
        *ALERTMANAGER, f"--config.file={directory}/alertmanager.yml", f"--storage.path={directory}/alerts",
        f"--web.listen-address={address}", "--cluster.listen-address=", "--log.level=warn",
    ]  # fmt: skip
    with _process(command):

        def is_ready() -> bool:
            try:
                with urllib.request.urlopen(f"http://{address}/-/ready") as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_until(is_ready, 0.1)
        yield address


@contextmanager
def _process(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, env={**os.environ, "GOMAXPROCS": "1"})
    try:
        yield
    finally:
        process.kill()
        process.wait(HANG_S)
