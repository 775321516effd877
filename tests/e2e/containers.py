"""Containers as processes: the very commands, environment, addresses and names of docker-compose.yml, or of rendered
manifests for Kubernetes.

Each replica of a service has an address of its own in 127.0.0.0/8, in place of the network that an engine would make.
What listens on 0.0.0.0 in its container listens on this address. Service names stand for the addresses of all replicas,
as in an engine's DNS (names.c). Where root runs the tests, the processes have what their containers have: a read-only
file system with one directory to write to, no capabilities, and the image's user if that one may run this interpreter.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from shared.python_child import child_environment
from tests.fakes.redis_server import SERVER, UNPACKED
from tests.fakes.waiting import HANG_S

ROOT = Path(__file__).parents[2]
NETWORK = f"127.{16 + os.getpid() % 200}"
ANY_ADDRESS = "0.0.0.0"


@dataclass(frozen=True)
class Service:
    """`part`: gateway, router, scheduler or worker, whose image the containers have; empty for Redis. `command`: what
    follows the image's entry point. `names`: names that stand for the containers' addresses, besides the service's."""

    part: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    grace_s: float
    names: tuple[str, ...] = ()


def compose_services() -> dict[str, Service]:
    """The services of docker-compose.yml that have something to do with Quire, those of profiles included."""
    text = (ROOT / "docker-compose.yml").read_text()
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: os.environ.get(found[1]) or found[2], text)
    services: Mapping[str, Any] = yaml.safe_load(text)["services"]
    found = {}
    for name, definition in services.items():
        part = re.match(r"quire-(\w+):", definition["image"])
        only_builds = definition.get("deploy", {}).get("replicas") == 0
        if only_builds or (part is None and name != "redis"):
            continue
        variables = definition.get("environment", {})
        given = {key: os.environ.get(key) if value is None else value for key, value in variables.items()}
        found[name] = Service(
            part=part[1] if part else "",
            command=tuple(definition["command"]),
            environment={key: value for key, value in given.items() if value is not None},
            grace_s=float(definition.get("stop_grace_period", "10s").removesuffix("s")),
        )
    return found


def dockerfile(part: str) -> str:
    return (ROOT / "deploy" / "docker" / f"{part}.Dockerfile").read_text()


def image_environment(part: str) -> dict[str, str]:
    lines = re.findall(r"^ENV (.+)$", dockerfile(part), re.MULTILINE)
    words = [word for line in lines for word in shlex.split(line)]
    return {name: value for name, value in (word.split("=", 1) for word in words) if name.startswith("QUIRE_")}


def entry_point(part: str) -> list[str]:
    (words,) = re.findall(r"^ENTRYPOINT (.+)$", dockerfile(part), re.MULTILINE)
    command, *rest = json.loads(words)
    assert command == "quire"
    return [sys.executable, "-P", "-m", "quire", *rest]


def user_of(part: str) -> int:
    (user,) = re.findall(r"^USER (\d+):\d+$", dockerfile(part), re.MULTILINE)
    return int(user)


# Makes everything read-only except the directory $0, and runs the command as the user $1.
_CONFINE = """
mount --bind "$0" "$0" && mount -o remount,bind,ro / && user=$1 && shift &&
exec setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"
"""


def confined(command: Sequence[str], user: int, writable: Path) -> list[str]:
    """Returns the command that runs `command` as in a container, or `command` itself if this process must not do so;
    in CI, that is an error. If `user` cannot run this interpreter, the command has this process's user."""
    for one in (user, os.getuid()):
        if _can_be_confined(one):
            os.chown(writable, one, one)
            return _confined(command, one, writable)
    assert "TESTS_NEED_TOOLS" not in os.environ, "unshare and setpriv cannot confine a process here"
    return list(command)


def _confined(command: Sequence[str], user: int, writable: Path) -> list[str]:
    return ["unshare", "--mount", "sh", "-c", _CONFINE, str(writable), str(user), *command]


@functools.cache
def _can_be_confined(user: int) -> bool:
    program = f"import quire, sys; assert sys.version == {sys.version!r}"
    with tempfile.TemporaryDirectory() as directory:
        command = _confined([sys.executable, "-P", "-c", program], user, Path(directory))
        try:
            return subprocess.run(command, capture_output=True).returncode == 0
        except FileNotFoundError:
            return False


@dataclass
class Container:
    service: str
    address: str
    log: Path
    process: subprocess.Popen[bytes]
    definition: Service

    def stop(self) -> None:
        """Stops it as an engine does, but waits for it on a slow machine, too. That the grace period is as long as the
        code may take is tested in tests/unit/deploy."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(max(self.definition.grace_s, HANG_S)) == 0, self.log.read_text()


@dataclass
class Project:
    """The running containers. `directory`: for logs, names and the library that resolves them."""

    directory: Path
    services: Mapping[str, Service]
    containers: dict[str, list[Container]] = field(default_factory=dict)
    _num_started: int = 0

    def __post_init__(self) -> None:
        source, self._library = Path(__file__).with_name("names.c"), self.directory / "names.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(self._library), str(source), "-ldl"], check=True)
        # Lines of a name and an address, as they are now.
        self.names = self.directory / "names"
        self._write_names()

    def scale(self, service: str, number: int) -> list[Container]:
        """`docker compose up --scale SERVICE=NUMBER`: starts containers, or stops those that started last. Returns the
        containers of the service."""
        running = self.containers.setdefault(service, [])
        while len(running) > number:
            self.remove(running[-1])
        while len(running) < number:
            running.append(self._start(service))
            self._write_names()
        return running

    def remove(self, *containers: Container) -> None:
        """Stops containers at the same time, as `kubectl delete pod` does."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(Container.stop, containers))
        for container in containers:
            self.containers[container.service].remove(container)
        self._write_names()

    def stop(self) -> None:
        """Stops everything, in the order of `depends_on`."""
        for containers in self.containers.values():
            self.remove(*containers)

    def kill(self) -> None:
        """Leaves no process behind."""
        for container in (one for each in self.containers.values() for one in each):
            if container.process.poll() is None:
                container.process.kill()
                container.process.wait()

    def logs(self) -> str:
        return "".join(f"--- {path.name}\n{path.read_text()[-5000:]}" for path in sorted(self.directory.glob("*.log")))

    def _start(self, service: str) -> Container:
        self._num_started += 1
        address = f"{NETWORK}.{list(self.services).index(service)}.{self._num_started}"
        log = self.directory / f"{service}-{self._num_started}.log"
        temporary = self.directory / f"{self._num_started}"
        temporary.mkdir()
        definition = self.services[service]
        if not definition.part:
            return self._start_redis(service, address, log, temporary)
        variables = {
            name: value.replace(ANY_ADDRESS, address)
            for name, value in {**image_environment(definition.part), **definition.environment}.items()
        }
        environment = child_environment() | variables
        environment |= {"LD_PRELOAD": str(self._library), "NAMES": str(self.names), "TMPDIR": str(temporary)}
        command = confined([*entry_point(definition.part), *definition.command], user_of(definition.part), temporary)
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        return Container(service, address, log, process, definition)

    def _start_redis(self, service: str, address: str, log: Path, directory: Path) -> Container:
        """Starts Redis by the service's command. Its image listens on all addresses, at the default port."""
        name, *options = self.services[service].command
        assert (name, SERVER is not None) == ("redis-server", True)
        libraries = sorted({str(path.parent) for path in UNPACKED.glob("lib/*/lib*.so*")})
        environment = os.environ | {"LD_LIBRARY_PATH": ":".join(libraries)}
        command = [str(SERVER), *options, "--bind", address, "--protected-mode", "no", "--dir", str(directory)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        return Container(service, address, log, process, self.services[service])

    def _write_names(self) -> None:
        running = (one for each in self.containers.values() for one in each)
        lines = [
            f"{name} {one.address}\n"
            for one in running
            for name in dict.fromkeys((one.service, *self.services[one.service].names))
        ]
        new = self.names.with_suffix(".new")
        new.write_text("".join(lines))
        new.rename(self.names)


@contextmanager
def running(numbers: Mapping[str, int], services: Mapping[str, Service] | None = None) -> Iterator[Project]:
    """Starts that many containers of each service, in this order, and stops them. Prints their logs if the block or the
    stop fails. `services`: if left out, those of docker-compose.yml."""
    with tempfile.TemporaryDirectory(prefix="quire-containers-") as directory:
        Path(directory).chmod(0o755)  # for the user of the images
        project = Project(Path(directory), services or compose_services())
        try:
            for service, number in numbers.items():
                project.scale(service, number)
            yield project
            project.stop()
        except BaseException:
            print(project.logs())
            raise
        finally:
            project.kill()
