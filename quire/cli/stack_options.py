"""From options to the configuration of a local stack: reads flags, environment and file, and checks them together."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from deploy.envoy.config import ANY, GatewayConfig
from quire.cli import vllm_options
from quire.cli.host_share import Share, Workers, share_host
from quire.cli.replicas import ReplicaConfig
from quire.cli.served_models import TABLES, check_names, divide_options, field_keys, names_of, read_tables
from quire.cli.stack import SERVICES, WIRING, Group, Stack, option_names, variable
from quire.cli.vllm_option import Form
from services.router.config import RouterConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.config import ConfigError, build, read_file
from shared.presets import Preset

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

# Options of routers and gateways, besides those that schedulers and workers have, too, that no single model can have.
_OF_ALL_MODELS = field_keys((GatewayConfig, RouterConfig)) | {"workers-on-host", "host-memory-bytes"}
# Keys of a model's table in the configuration file.
MODEL_KEYS = (
    field_keys((SchedulerConfig, WorkerConfig)) | {"schedulers", "workers", "data-parallel-size"}
) - _OF_ALL_MODELS


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
        preset = Preset()
        file_with_preset = preset.expand(one.flags, environment, one.file)
        if preset.note:
            notes.append(f"{one.origin}{preset.note}")
        scheduler = built(SchedulerConfig, one.flags, file_with_preset, one.origin)
        worker = built(WorkerConfig, one.flags, file_with_preset, one.origin)
        replicas = built(ReplicaConfig, one.flags, one.file, one.origin)
        if worker is not None and scheduler is not None and replicas is not None:
            # The parts get the preset's options as flags.
            worker, scheduler = dataclasses.replace(worker, preset=None), dataclasses.replace(scheduler, preset=None)
            models.append(_Model(worker, scheduler, replicas))
        try:
            name = worker.model if worker is not None else str(one.flags.get("model", ""))
            notes += vllm_options.check(one.flags, environment, one.file, name)
        except ConfigError as error:
            problems.append(str(error))
    labels, shares = [""], [Share()]
    if len(models) == len(options):
        try:
            labels = _labels([model.worker for model in models], None if router is None else router.default_model)
            shares = _shares(models, labels, environment)
        except ConfigError as error:
            problems.append(str(error))
    if problems or gateway is None or router is None:
        # Several parts can have the same option, and then report the same problem. The error names it once.
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    for model, label in zip(models, labels, strict=True):
        _check_model(model, f"{label}: " if label else "")
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
    known = {name.replace("_", "-") for name in option_names() | vllm_options.OPTIONS.keys()} | {TABLES}
    if unknown := sorted(file.keys() - known):
        raise ConfigError(f"{unknown[0]} in the configuration file is not an option; see quire serve --help")


def _labels(workers: Sequence[WorkerConfig], default: str | None) -> list[str]:
    """Returns the name of each model among several. Raises ConfigError if two have the same name, or if `default`, the
    name of the model for requests that name none, is none of them."""
    if len(workers) == 1:
        return [""]
    names = [names_of(worker) for worker in workers]
    check_names(names)
    labels = [one.label for one in names]
    if default is not None and default not in labels and not any(default in one.names for one in names):
        raise ConfigError(f"--default-model is {default!r}, which is none of the models: {', '.join(labels)}")
    return labels


def _shares(models: Sequence[_Model], labels: Sequence[str], environment: Mapping[str, str]) -> list[Share]:
    workers = [
        Workers(label, model.worker, model.replicas.num_workers) for label, model in zip(labels, models, strict=True)
    ]
    return list(share_host(workers, environment))


def _check_model(model: _Model, origin: str) -> None:
    """Raises ConfigError if options of the scheduler and the worker do not go together. `origin`: what the error begins
    with."""
    worker, scheduler = model.worker, model.scheduler
    if scheduler.preemption_mode == "swap" and (
        worker.swap_space == 0 or (worker.swap_space, worker.device) == (None, "cpu")
    ):
        raise ConfigError(
            f"{origin}--preemption-mode is swap, but there is no swap space; set --swap-space, or use auto"
        )
    step, longest = scheduler.max_num_batched_tokens, worker.max_model_len
    if not scheduler.enable_chunked_prefill and step is not None and longest is not None and longest > step:
        # Refuse this combination of options before the start. The scheduler refuses it, too, but only after the worker
        # has loaded the model.
        raise ConfigError(
            f"{origin}--no-enable-chunked-prefill computes each prompt in one step, but --max-model-len is {longest} "
            f"and --max-num-batched-tokens {step}; raise --max-num-batched-tokens or lower --max-model-len"
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
