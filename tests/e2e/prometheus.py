"""Real Prometheus and Alertmanager processes for tests, with the flags that they have in docker-compose.yml."""

from __future__ import annotations

import json
import math
import os
import re
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
CONFIGURATIONS = ROOT / "deploy" / "prometheus"
RULES = CONFIGURATIONS / "rules.yml"
_SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


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
PROMTOOL, AMTOOL = find("promtool"), find("amtool")
# Whether Prometheus can ask a DNS server of a test.
CAN_HAVE_A_RESOLVER = _can_mount() and dns_server.may_listen()


def is_unpacked(program: str | None) -> bool:
    """Whether the Makefile has unpacked the program. Others are the system's own."""
    return program is not None and program.startswith(str(_UNPACKED))


def version_of(program: str) -> str:
    """The first number of a program's version."""
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return _major(text.stdout + text.stderr, rf"^{Path(program).name.removeprefix('prometheus-')}, version ")


def version_in_compose(service: str) -> str:
    """The first number of the version of a service's image in docker-compose.yml."""
    return _major(_SERVICES[service]["image"], f"^prom/{service}:v")


def _major(text: str, before: str) -> str:
    found = re.search(rf"{before}(\d+)\.", text)
    assert found, text
    return found[1]


def as_in_compose(service: str, places: Mapping[str, object]) -> list[str]:
    """The flags of a service in docker-compose.yml. `places`: values for those flags that name files."""
    flags = dict(flag.split("=", 1) for flag in _SERVICES[service]["command"])
    assert {name for name, value in flags.items() if value.startswith("/")} == places.keys()
    return [f"{name}={value}" for name, value in {**flags, **places}.items()]


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

    def label_names(self, query: str) -> set[str]:
        """The names of the labels that any series of a query has had in the last hour; none without an answer."""
        found = self.ask("query", query=f"last_over_time(({query})[1h:2s])")
        return set().union(*(one["metric"] for one in found["result"])) if found is not None else set()

    def highest(self, query: str) -> float:
        """The highest value that any series of a query has had in the last ten minutes; NaN if it has had none."""
        found = self.ask("query", query=f"max(max_over_time(({query})[10m:1s]))")
        return float(found["result"][0]["value"][1]) if found is not None and found["result"] else math.nan


def _job(name: str, addresses: Sequence[str]) -> dict[str, Any]:
    return {"job_name": name, "static_configs": [{"targets": addresses}]}


def targets_of_one_host(ports: Sequence[int]) -> dict[str, list[str]]:
    """The targets of each job of one-host.yml, at `ports` instead of 9000 and the ports that follow it."""
    moved = {f"127.0.0.1:{9000 + index}": f"127.0.0.1:{port}" for index, port in enumerate(ports)}
    jobs = yaml.safe_load((CONFIGURATIONS / "one-host.yml").read_text())["scrape_configs"]
    targets = {job["job_name"]: list(job["static_configs"][0]["targets"]) for job in jobs}
    assert [_job(name, addresses) for name, addresses in targets.items()] == jobs, "they say more than is tested"
    return {name: [moved[address] for address in addresses] for name, addresses in targets.items()}


@contextmanager
def running_prometheus(
    directory: Path, targets: Mapping[str, list[str]], alertmanager: str | None = None
) -> Iterator[Prometheus]:
    """Scrapes the targets of each job, and evaluates Quire's rules, every second."""
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [_job(name, addresses) for name, addresses in targets.items()],
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
    with _prometheus(command, CONFIGURATIONS / "prometheus.yml", directory) as prometheus:
        yield prometheus


@contextmanager
def _prometheus(program: Sequence[str], config: Path, directory: Path) -> Iterator[Prometheus]:
    address = f"127.0.0.1:{free_port()}"
    flags = as_in_compose("prometheus", {"--config.file": config, "--storage.tsdb.path": directory / "data"})
    with _process([*program, *flags, f"--web.listen-address={address}"], address):
        yield Prometheus(address)


@contextmanager
def running_alertmanager(directory: Path, config: Mapping[str, Any]) -> Iterator[str]:
    """Yields its address."""
    (directory / "alertmanager.yml").write_text(yaml.safe_dump(dict(config)))
    address = f"127.0.0.1:{free_port()}"
    places = {"--config.file": directory / "alertmanager.yml", "--storage.path": directory / "alerts"}
    command = [*ALERTMANAGER, *as_in_compose("alertmanager", places), f"--web.listen-address={address}"]
    with _process(command, address):
        yield address


def _is_ready(address: str) -> bool:
    """Asks as the health checks of docker-compose.yml do."""
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def _process(command: list[str], address: str) -> Iterator[None]:
    """Runs a program from when it is ready at its address."""
    process = subprocess.Popen(command, env={**os.environ, "GOMAXPROCS": "1"})

    def is_ready() -> bool:
        assert process.poll() is None, f"it has ended: {command}"
        return _is_ready(address)

    try:
        wait_until(is_ready, 0.1)
        yield
    finally:
        process.kill()
        process.wait(HANG_S)
