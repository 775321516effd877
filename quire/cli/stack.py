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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from deploy.envoy.config import ANY, GatewayConfig
from quire.cli import vllm_options
from quire.cli.host_share import Share, Workers, share_host
from quire.cli.part import PartSpec
from quire.cli.replicas import ReplicaConfig, part_names
from quire.cli.runtime_directory import runtime_directory
from quire.cli.served_models import TABLES, check_names, divide_options, field_keys, names_of, read_tables
from quire.cli.vllm_option import Form
from services.router.config import RouterConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.config import ENVIRONMENT_PREFIX, ConfigError, build, read_file, to_argv, unknown_variables
from shared.discovery import PartOptions
from shared.python_child import child_environment, python_command

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

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
    {"listen", "router", "scheduler", "worker", "status_fd"} | {field.name for field in dataclasses.fields(PartOptions)}
)
# Maximum length, in bytes, of the path of the directory that contains the stack's directory quire-xxxxxxxx. The kernel
# allows 107 bytes for a Unix socket's path, and the longest path below the stack's directory is the gateway's admin
# socket, /quire-gateway-xxxxxxxx/admin.sock (34 bytes).
LONGEST_PARENT = 107 - 34 - len("/quire-xxxxxxxx")
# Seconds between the end of a part's drain and SIGKILL.
STOP_MARGIN_S = 5.0


# Options of routers and gateways, besides those that schedulers and workers have, too, that no single model can have.
_OF_ALL_MODELS = field_keys((GatewayConfig, RouterConfig)) | {"workers-on-host", "host-memory-bytes"}
# Keys of a model's table in the configuration file.
MODEL_KEYS = (
    field_keys((SchedulerConfig, WorkerConfig)) | {"schedulers", "workers", "data-parallel-size"}
) - _OF_ALL_MODELS


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


@dataclass(frozen=True, slots=True)
class _Model:
    """The configuration of one model's parts."""

    worker: WorkerConfig
    scheduler: SchedulerConfig
    replicas: ReplicaConfig


def read_options(path: str | None) -> dict[str, Any]:
    """Reads a TOML file with the stack's options. Raises ConfigError."""
    file = read_file(path, {option.name for option in vllm_options.OPTIONS.values() if option.form is Form.JSON})
    if path is not None and TABLES in file:
        file[TABLES] = read_tables(file[TABLES], path)
    return file


def build_stack(flags: Mapping[str, Any], file: Mapping[str, Any]) -> Stack:
    """Builds the stack's configuration. The keys of `flags` are field names, such as block_size; the keys of `file` are
    option names, such as block-size. Both can contain vLLM's options. An option that several parts have is set for each
    of them. `model` can be a list; `models` in the file is a list with the options of each model. Raises ConfigError
    with one line per problem."""
    _check_names_of_options(flags, file)
    environment = {key: value for key, value in os.environ.items() if key not in map(variable, WIRING)}
    options = divide_options(flags, environment, file, MODEL_KEYS)
    common = {key: value for key, value in file.items() if key != TABLES}
    problems: list[str] = []
    notes: list[str] = []

    def built(config_class: type[T], flags: Mapping[str, Any], file: Mapping[str, Any], origin: str = "") -> T | None:
        try:
            return build(config_class, flags, environment, file)
        except ConfigError as error:
            problems.append(f"{origin}{error}")
            return None

    gateway, router = built(GatewayConfig, flags, common), built(RouterConfig, flags, common)
    models: list[_Model] = []
    for one in options:
        scheduler = built(SchedulerConfig, one.flags, one.file, one.origin)
        worker = built(WorkerConfig, one.flags, one.file, one.origin)
        replicas = built(ReplicaConfig, one.flags, one.file, one.origin)
        if worker is not None and scheduler is not None and replicas is not None:
            models.append(_Model(worker, scheduler, replicas))
        try:
            name = worker.model if worker is not None else str(one.flags.get("model", ""))
            notes += vllm_options.check(one.flags, environment, one.file, name)
        except ConfigError as error:
            problems.append(str(error))
    labels, shares = [""], [Share()]
    if len(models) == len(options):
        try:
            labels = _labels([model.worker for model in models])
            shares = _shares(models, labels, environment)
        except ConfigError as error:
            problems.append(str(error))
    if problems or gateway is None or router is None:
        # Several parts can have the same option, and then report the same problem. The error names it once.
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    for model in models:
        _check_model(model)
    groups = _groups(gateway, router, models, labels, shares)
    if gateway.metrics_port is not None:
        groups = _with_metrics_ports(groups, gateway.metrics_port)
    return Stack(groups, tuple(dict.fromkeys(notes)), tuple(labels) if len(models) > 1 else ())


def _check_names_of_options(flags: Mapping[str, Any], file: Mapping[str, Any]) -> None:
    """Raises ConfigError for options that the stack sets itself, and for keys of the file that are no options."""
    dashed = {name.replace("_", "-") for name in WIRING}
    tables = file.get(TABLES, ())
    wired = [
        *(f"--{name.replace('_', '-')}" for name in sorted(WIRING & flags.keys())),
        *(
            f"{name} in the configuration file"
            for name in sorted(dashed & {*file, *(key for one in tables for key in one)})
        ),
    ]
    if wired:
        raise ConfigError(f"{wired[0]} is for parts started one by one; quire serve sets it itself")
    unknown = sorted(file.keys() - {name.replace("_", "-") for name in option_names() | vllm_options.OPTIONS.keys()})
    if unknown and unknown != [TABLES]:
        unknown = [name for name in unknown if name != TABLES]
        raise ConfigError(f"{unknown[0]} in the configuration file is not an option; see quire serve --help")


def _labels(workers: Sequence[WorkerConfig]) -> list[str]:
    """Returns the name of each model among several. Raises ConfigError if two have the same name."""
    if len(workers) == 1:
        return [""]
    names = [names_of(worker) for worker in workers]
    check_names(names)
    return [one.label for one in names]


def _shares(models: Sequence[_Model], labels: Sequence[str], environment: Mapping[str, str]) -> list[Share]:
    workers = [
        Workers(label, model.worker, model.replicas.num_workers) for label, model in zip(labels, models, strict=True)
    ]
    return list(share_host(workers, environment))


def _check_model(model: _Model) -> None:
    """Raises ConfigError if options of the scheduler and the worker do not go together."""
    worker, scheduler = model.worker, model.scheduler
    if scheduler.preemption_mode == "swap" and (
        worker.swap_space == 0 or (worker.swap_space, worker.device) == (None, "cpu")
    ):
        raise ConfigError("--preemption-mode is swap, but there is no swap space; set --swap-space, or use auto")
    step, longest = scheduler.max_num_batched_tokens, worker.max_model_len
    if not scheduler.enable_chunked_prefill and step is not None and longest is not None and longest > step:
        # Refuse this combination of options before the start. The scheduler refuses it, too, but only after the worker
        # has loaded the model.
        raise ConfigError(
            f"--no-enable-chunked-prefill computes each prompt in one step, but --max-model-len is {longest} and "
            f"--max-num-batched-tokens {step}; raise --max-num-batched-tokens or lower --max-model-len"
        )


def _groups(
    gateway: GatewayConfig,
    router: RouterConfig,
    models: Sequence[_Model],
    labels: Sequence[str],
    shares: Sequence[Share],
) -> tuple[Group, ...]:
    """Returns all parts of the stack, in the order in which they are stopped."""
    num_workers = sum(model.replicas.num_workers for model in models)
    num_schedulers = sum(model.replicas.num_schedulers for model in models)
    num_routers = models[0].replicas.num_routers
    schedulers, workers = list[Group](), list[Group]()
    for model, label, share in zip(models, labels, shares, strict=True):
        first = sum(group.count for group in schedulers)
        schedulers.append(
            Group("scheduler", model.scheduler, model.replicas.num_schedulers, label, first, num_schedulers)
        )
        worker = dataclasses.replace(
            model.worker,
            workers_on_host=max(model.worker.workers_on_host, num_workers),
            host_memory_bytes=share.host_memory_bytes or model.worker.host_memory_bytes,
        )
        first = sum(group.count for group in workers)
        workers.append(Group("worker", worker, model.replicas.num_workers, label, first, num_workers, share.gpus))
    return (
        Group("gateway", _open_to_pages(gateway) if router.api_key else gateway),
        Group("router", router, num_routers, total=num_routers),
        *schedulers,
        *workers,
    )


def _with_metrics_ports(groups: Sequence[Group], base: int) -> tuple[Group, ...]:
    """Returns the parts with the metrics port of each group's first part. Raises ConfigError if the ports do not
    suffice."""
    last = base + len(SERVICES) * max(group.total for group in groups) - 1
    if last > 65535:
        raise ConfigError(f"--metrics-port is {base}, so the parts would use ports up to {last}; lower it")
    kinds = list(SERVICES)
    return tuple(
        dataclasses.replace(
            group,
            config=dataclasses.replace(
                group.config, metrics_port=base + kinds.index(group.kind) + len(SERVICES) * group.first
            ),
        )
        for group in groups
    )


def _open_to_pages(config: GatewayConfig) -> GatewayConfig:
    """Returns the gateway's configuration for a stack with an API key. By default, every Origin and every Host header
    is allowed, because a web page needs the key like any other client."""
    origins = (ANY,) if config.allowed_origins is None else config.allowed_origins
    hosts = (ANY,) if config.allowed_hosts is None else config.allowed_hosts
    return dataclasses.replace(config, allowed_origins=origins, allowed_hosts=hosts)


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
    """Returns a warning for each QUIRE_ variable that is not an option of the stack. `prog`: the command's name in the
    warning."""
    return unknown_variables(os.environ, option_names() | vllm_options.OPTIONS.keys(), prog)


def option_names() -> frozenset[str]:
    classes = (*SERVICES.values(), ReplicaConfig)
    return frozenset(field.name for config_class in classes for field in dataclasses.fields(config_class))


def variable(name: str) -> str:
    """Returns the name of an option's environment variable."""
    return ENVIRONMENT_PREFIX + name.upper()
