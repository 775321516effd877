"""The local stack: its parts, their addresses, and the command that starts each part.

In the local stack, the parts listen on Unix sockets in a private directory. Containers run the same commands with other
addresses. There can be several routers, schedulers and workers (replicas.py has their numbers and names), and several
models (served_models.py). The gateway gets the addresses of all routers, each router those of all schedulers, and each
scheduler those of all workers of its model.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.envoy.config import GatewayConfig
from quire.cli import vllm_options
from quire.cli.part import PartSpec
from quire.cli.replicas import ReplicaConfig, part_names
from quire.cli.runtime_directory import runtime_directory
from services.router.config import RouterConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.config import ENVIRONMENT_PREFIX, ConfigError, to_argv, unknown_variables
from shared.discovery import PartOptions
from shared.python_child import child_environment, python_command

# The kinds of parts in the order in which they are stopped, so that each part stops before the parts that it calls.
SERVICES: dict[str, type] = {
    "gateway": GatewayConfig,
    "router": RouterConfig,
    "scheduler": SchedulerConfig,
    "worker": WorkerConfig,
}
# The kind of part that each kind calls. It has an option of this name.
CALLED = {"gateway": "router", "router": "scheduler", "scheduler": "worker"}
# Options that the stack sets itself.
# They include those of discovery, because the parts of a stack find each other without it.
WIRING = frozenset(
    {"listen", "router", "scheduler", "worker", "worker_model", "status_fd"}
    | {field.name for field in dataclasses.fields(PartOptions)}
)
# Maximum length, in bytes, of the path of the directory that contains the stack's directory quire-xxxxxxxx. The kernel
# allows 107 bytes for a Unix socket's path, and the longest path below the stack's directory is the gateway's admin
# socket, /quire-gateway-xxxxxxxx/admin.sock (34 bytes).
LONGEST_PARENT = 107 - 34 - len("/quire-xxxxxxxx")
# Seconds between the end of a part's drain and SIGKILL.
STOP_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Group:
    """Parts of one kind with one configuration: all routers, or the workers of one model. `model`: the model's name
    among several of the stack, else empty. `first`: number of parts of this kind in the groups before this one.
    `total`: number of parts of this kind in the stack. `gpus`: the GPU of each part, as CUDA_VISIBLE_DEVICES names it;
    empty if the parts choose by themselves."""

    kind: str
    config: Any
    count: int = 1
    model: str = ""
    first: int = 0
    total: int = 1
    gpus: tuple[str, ...] = ()

    @property
    def sockets(self) -> tuple[str, ...]:
        """The names of the parts' sockets, such as worker-0 and worker-1. Parts are numbered over all models, because
        the name of a model can be too long for a socket's path."""
        return part_names(self.kind, self.total)[self.first : self.first + self.count]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parts in the display and in messages."""
        return tuple(f"{name} of {self.model}" if self.model else name for name in self.sockets)


@dataclass(frozen=True, slots=True)
class Stack:
    """The configuration of all parts, without the addresses that connect them. `groups`: in the order in which they are
    stopped. `notes`: messages to show the user at the start. `models`: the names of the models if there are several,
    in the order of the options."""

    groups: tuple[Group, ...]
    notes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    @property
    def configs(self) -> Mapping[str, Any]:
        """The configuration of each kind of part; of schedulers and workers, the first model's."""
        return {group.kind: group.config for group in reversed(self.groups)}

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of all parts, in the order in which they are stopped."""
        return tuple(name for group in self.groups for name in group.names)

    def names(self, kind: str) -> tuple[str, ...]:
        """Returns the names of the parts of one kind, such as worker-0 and worker-1."""
        return tuple(name for group in self.of_kind(kind) for name in group.names)

    def of_kind(self, kind: str) -> Iterator[Group]:
        return (group for group in self.groups if group.kind == kind)

    @property
    def gateway(self) -> GatewayConfig:
        config = self.configs["gateway"]
        assert isinstance(config, GatewayConfig)
        return config

    def with_gateway(self, config: GatewayConfig | None) -> Stack:
        """Returns the stack with another configuration of the gateway; None: without a gateway."""
        gateway = () if config is None else (Group("gateway", config),)
        return dataclasses.replace(self, groups=(*gateway, *(one for one in self.groups if one.kind != "gateway")))

    @property
    def api_key(self) -> str | None:
        """Returns one of the stack's API keys, or None if clients need no key."""
        config = self.configs["router"]
        assert isinstance(config, RouterConfig)
        return next(iter(config.api_key), None)


def part_specs(stack: Stack, directory: Path, *, private: bool = False) -> tuple[PartSpec, ...]:
    """Returns how to run each part. `directory`: directory of the Unix sockets on which the routers, the schedulers and
    the workers listen. The gateway of a `private` stack listens on a Unix socket in this directory, too."""
    return tuple(
        PartSpec(
            name,
            python_command(
                "quire",
                group.kind,
                *to_argv(_config_of(group, index)),
                *(("--listen", socket_address(directory, socket)) if group.kind != "gateway" or private else ()),
                *_peers(stack, directory, group),
            ),
            stop_timeout=max(10.0, _drain_seconds(group.config) + STOP_MARGIN_S),
            kind=group.kind,
            environment={"CUDA_VISIBLE_DEVICES": group.gpus[index]} if group.gpus else {},
            # One scheduler of a model suffices: a further one may have to wait until another one gives it a worker.
            # Routers are ready only once they have a scheduler.
            is_awaited=group.kind != "scheduler" or group.count == 1,
        )
        for group in stack.groups
        for index, (name, socket) in enumerate(zip(group.names, group.sockets, strict=True))
    )


def _peers(stack: Stack, directory: Path, group: Group) -> Iterator[str]:
    """Yields the flags with the addresses of the parts that a part of this group calls: a router the schedulers of all
    models, a scheduler the workers of its own model."""
    peer = CALLED.get(group.kind)
    for called in stack.groups:
        if called.kind == peer and (not group.model or called.model == group.model):
            for socket in called.sockets:
                yield from (f"--{peer}", socket_address(directory, socket))


def _config_of(group: Group, index: int) -> Any:
    """Returns the configuration of one of the parts of a group: with its own metrics port and step log."""
    config, changes = group.config, dict[str, Any]()
    if config.metrics_port is not None:
        changes["metrics_port"] = config.metrics_port + len(SERVICES) * index
    if group.kind == "worker" and config.step_log and group.total > 1:
        path = Path(config.step_log)
        changes["step_log"] = str(path.with_stem(f"{path.stem}-{group.first + index}"))
    return dataclasses.replace(config, **changes)


def _drain_seconds(config: Any) -> float:
    """Returns the maximum duration of the part's drain, in seconds."""
    return float(getattr(config, "drain_delay", 0.0) + getattr(config, "drain_timeout", 0.0))


def socket_address(directory: Path, name: str) -> str:
    """Returns the address of a part's Unix socket. `name`: the socket's name, such as router or worker-0."""
    return f"unix:{directory}/{name}.sock"


def part_environment(stack: Stack, directory: Path) -> dict[str, str]:
    """Returns the environment variables of the parts. They contain the stack's secret options. All other options are
    passed to the parts as flags."""
    resolved = {variable(name) for name in option_names()}
    environment = {key: value for key, value in child_environment().items() if key not in resolved}
    for config in (group.config for group in stack.groups):
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            if field.metadata["secret"] and value != field.default:
                items = value if isinstance(value, tuple) else (value,)
                environment[variable(field.name)] = ",".join(str(item) for item in items)
    # The parts create their temporary files in the stack's directory, so that they are removed with it.
    environment["TMPDIR"] = str(directory)
    return environment


def stack_directory() -> AbstractContextManager[Path]:
    """Returns a context manager that creates a private directory, whose path is short enough for Unix sockets. Raises
    ConfigError if no parent directory is suitable."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if parent and _holds_sockets(path := os.path.abspath(parent)):
            return runtime_directory("quire-", Path(path))
    raise ConfigError("no directory for temporary files has a path short enough for Unix sockets; set XDG_RUNTIME_DIR")


def _holds_sockets(path: str) -> bool:
    is_open = os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)
    return is_open and len(os.fsencode(path)) <= LONGEST_PARENT


def unknown_options(prog: str) -> dict[str, str]:
    """Returns a warning for each QUIRE_ variable that no part has as an option, nor the stack if `prog` starts it.
    Parts may share one environment. `prog`: the command, such as `quire worker`."""
    known = option_names() | vllm_options.OPTIONS.keys()
    if prog.removeprefix("quire ") in SERVICES:
        known -= _names_of((ReplicaConfig,))
    return unknown_variables(os.environ, known, prog)


def option_names() -> frozenset[str]:
    return _names_of((*SERVICES.values(), ReplicaConfig))


def _names_of(classes: Iterable[type]) -> frozenset[str]:
    return frozenset(field.name for config_class in classes for field in dataclasses.fields(config_class))


def variable(name: str) -> str:
    """Returns the name of an option's environment variable."""
    return ENVIRONMENT_PREFIX + name.upper()
