"""The local stack: its parts, their addresses, and the command that starts each part.

In the local stack, the parts listen on Unix sockets in a private directory. Containers run the same commands with other
addresses. There can be several routers, schedulers and workers (replicas.py has their numbers and names): the gateway
gets the addresses of all routers, each router those of all schedulers, and each scheduler those of all workers.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.envoy.config import ANY, GatewayConfig
from quire.cli import vllm_options
from quire.cli.host_share import share_host
from quire.cli.part import PartSpec
from quire.cli.replicas import ReplicaConfig, part_names
from quire.cli.runtime_directory import runtime_directory
from quire.cli.vllm_option import Form
from services.router.config import RouterConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.config import ENVIRONMENT_PREFIX, ConfigError, build, read_file, to_argv, unknown_variables
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
    {"listen", "router", "scheduler", "worker", "status_fd"} | {field.name for field in dataclasses.fields(PartOptions)}
)
# Maximum length, in bytes, of the path of the directory that contains the stack's directory quire-xxxxxxxx. The kernel
# allows 107 bytes for a Unix socket's path, and the longest path below the stack's directory is the gateway's admin
# socket, /quire-gateway-xxxxxxxx/admin.sock (34 bytes).
LONGEST_PARENT = 107 - 34 - len("/quire-xxxxxxxx")
# Seconds between the end of a part's drain and SIGKILL.
STOP_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Stack:
    """The configuration of each kind of part, without the addresses that connect the parts. `notes`: messages to show
    the user at the start. `gpus`: the GPU of each worker, as CUDA_VISIBLE_DEVICES names it; empty if workers choose by
    themselves."""

    configs: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    replicas: ReplicaConfig = dataclasses.field(default_factory=ReplicaConfig)
    gpus: tuple[str, ...] = ()

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of all parts, in the order in which they are stopped."""
        return tuple(name for kind in self.configs for name in self.names(kind))

    def names(self, kind: str) -> tuple[str, ...]:
        """Returns the names of the parts of one kind, such as worker-0 and worker-1."""
        return part_names(kind, self.replicas.count(kind))

    @property
    def gateway(self) -> GatewayConfig:
        config = self.configs["gateway"]
        assert isinstance(config, GatewayConfig)
        return config

    @property
    def api_key(self) -> str | None:
        """Returns one of the stack's API keys, or None if clients need no key."""
        config = self.configs["router"]
        assert isinstance(config, RouterConfig)
        return next(iter(config.api_key), None)


def read_options(path: str | None) -> dict[str, Any]:
    """Reads a TOML file with the stack's options. Raises ConfigError."""
    return read_file(path, {option.name for option in vllm_options.OPTIONS.values() if option.form is Form.JSON})


def build_stack(flags: Mapping[str, Any], file: Mapping[str, Any]) -> Stack:
    """Builds the stack's configuration. The keys of `flags` are field names, such as block_size; the keys of `file` are
    option names, such as block-size. Both can contain vLLM's options. An option that several parts have is set for each
    of them. Raises ConfigError with one line per problem."""
    wired = [
        *(f"--{name.replace('_', '-')}" for name in sorted(WIRING & flags.keys())),
        *(f"{name} in the configuration file" for name in sorted({w.replace("_", "-") for w in WIRING} & file.keys())),
    ]
    if wired:
        raise ConfigError(f"{wired[0]} is for parts started one by one; quire serve sets it itself")
    unknown = sorted(file.keys() - {name.replace("_", "-") for name in option_names() | vllm_options.OPTIONS.keys()})
    if unknown:
        raise ConfigError(f"{unknown[0]} in the configuration file is not an option; see quire serve --help")
    environment = {key: value for key, value in os.environ.items() if key not in map(variable, WIRING)}
    configs: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    replicas, gpus = ReplicaConfig(), tuple[str, ...]()
    problems: list[str] = []
    for name, config_class in SERVICES.items():
        try:
            configs[name] = build(config_class, flags, environment, file)
        except ConfigError as error:
            problems.append(str(error))
    try:
        replicas = build(ReplicaConfig, flags, environment, file)
        if "worker" in configs:
            gpus = share_host(configs["worker"], replicas.num_workers, environment)
    except ConfigError as error:
        problems.append(str(error))
    try:
        model = configs["worker"].model if "worker" in configs else str(flags.get("model", ""))
        notes = vllm_options.check(flags, environment, file, model)
    except ConfigError as error:
        problems.append(str(error))
    if problems:
        # Several parts can have the same option, and then report the same problem. The error names it once.
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    worker, scheduler = configs["worker"], configs["scheduler"]
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
    if configs["router"].api_key:
        configs["gateway"] = _open_to_pages(configs["gateway"])
    base = configs["gateway"].metrics_port
    if base is not None:
        for offset, name in enumerate(SERVICES):
            configs[name] = dataclasses.replace(configs[name], metrics_port=base + offset)
        last = base + len(SERVICES) * max(map(replicas.count, SERVICES)) - 1
        if last > 65535:
            raise ConfigError(f"--metrics-port is {base}, so the parts would use ports up to {last}; lower it")
    num_workers = max(worker.workers_on_host, replicas.num_workers)
    configs["worker"] = dataclasses.replace(configs["worker"], workers_on_host=num_workers)
    return Stack(configs, notes, replicas, gpus)


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
                kind,
                *to_argv(_config_of(stack, kind, index)),
                *(("--listen", socket_address(directory, name)) if kind != "gateway" or private else ()),
                *_peers(stack, directory, kind),
            ),
            stop_timeout=max(10.0, _drain_seconds(config) + STOP_MARGIN_S),
            kind=kind,
            environment={"CUDA_VISIBLE_DEVICES": stack.gpus[index]} if kind == "worker" and stack.gpus else {},
            # One scheduler suffices: a further one may have to wait until another one gives it a worker. Routers are
            # ready only once they have a scheduler.
            is_awaited=kind != "scheduler" or stack.replicas.num_schedulers == 1,
        )
        for kind, config in stack.configs.items()
        for index, name in enumerate(stack.names(kind))
    )


def _peers(stack: Stack, directory: Path, kind: str) -> Iterator[str]:
    """Yields the flags with the addresses of the parts that a part of this kind calls."""
    if (peer := CALLED.get(kind)) is not None:
        for name in stack.names(peer):
            yield from (f"--{peer}", socket_address(directory, name))


def _config_of(stack: Stack, kind: str, index: int) -> Any:
    """Returns the configuration of one of several parts of a kind: with its own metrics port and step log."""
    config, changes = stack.configs[kind], dict[str, Any]()
    if config.metrics_port is not None:
        changes["metrics_port"] = config.metrics_port + len(SERVICES) * index
    if kind == "worker" and config.step_log and stack.replicas.num_workers > 1:
        path = Path(config.step_log)
        changes["step_log"] = str(path.with_stem(f"{path.stem}-{index}"))
    return dataclasses.replace(config, **changes)


def _drain_seconds(config: Any) -> float:
    """Returns the maximum duration of the part's drain, in seconds."""
    return float(getattr(config, "drain_delay", 0.0) + getattr(config, "drain_timeout", 0.0))


def socket_address(directory: Path, name: str) -> str:
    """Returns the address of a part's Unix socket. `name`: the part's name, such as router or worker-0."""
    return f"unix:{directory}/{name}.sock"


def part_environment(stack: Stack, directory: Path) -> dict[str, str]:
    """Returns the environment variables of the parts. They contain the stack's secret options. All other options are
    passed to the parts as flags."""
    resolved = {variable(name) for name in option_names()}
    environment = {key: value for key, value in child_environment().items() if key not in resolved}
    for config in stack.configs.values():
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
