"""Checks before the start that a host has room for several workers, and gives each worker its GPU and its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.cli.gpus import visible_gpus
from quire.cli.memory_need import memory_need
from services.worker.config import WorkerConfig
from shared.config import ConfigError
from shared.host_memory import GIB, Available, available_memory, in_words


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of one model. `model`: its name among the models of the stack."""

    model: str
    config: WorkerConfig
    count: int


@dataclass(frozen=True, slots=True)
class Share:
    """What each of a model's workers gets. `gpus`: the GPU of each, as CUDA_VISIBLE_DEVICES names it; () if the workers
    run on the CPU, or if there is only one, which chooses by itself. `host_memory_bytes`: for each worker; None if all
    get the same."""

    gpus: tuple[str, ...] = ()
    host_memory_bytes: int | None = None


def share_host(models: Sequence[Workers], environment: Mapping[str, str]) -> tuple[Share, ...]:
    """Returns what the workers of each model get. Raises ConfigError if the host has fewer GPUs than workers, or less
    memory than the models and the options ask for. What a single worker asks for, it checks itself."""
    if sum(workers.count for workers in models) == 1:
        return (Share(),)
    gpus = _share_gpus(models, environment)
    if len(models) == 1:
        _check_options(models[0], on_cpu=not gpus[0])
        return (Share(gpus[0]),)
    shares = _share_memory(models, [not found for found in gpus])
    return tuple(Share(found, share) for found, share in zip(gpus, shares, strict=True))


def _share_gpus(models: Sequence[Workers], environment: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Returns the GPUs of each model's workers; () for a model on the CPU."""
    total = sum(workers.count for workers in models)
    wanted = {workers.model: workers.count for workers in models if workers.config.device != "cpu"}
    needed = sum(wanted.values())
    for workers in models:
        if ":" in workers.config.device:
            raise ConfigError(
                f"--device is {workers.config.device}, but {total} workers need {total} GPUs; use --device cuda, and "
                "choose the GPUs with CUDA_VISIBLE_DEVICES"
            )
    found = visible_gpus(environment) if wanted else ()
    if len(found) < needed and (found or any(workers.config.device == "cuda" for workers in models)):
        where = "CUDA_VISIBLE_DEVICES shows" if environment.get("CUDA_VISIBLE_DEVICES") else "this host has"
        several = "" if len(models) == 1 else ', or some of the models with device = "cpu" in their tables'
        raise ConfigError(
            f"{needed} workers need {needed} GPUs, but {where} {len(found)}; lower the number of workers, or "
            f"run them on the CPU with --device cpu{several}"
        )
    left = iter(found)
    return [
        tuple(next(left) for _ in range(workers.count)) if found and workers.config.device != "cpu" else ()
        for workers in models
    ]


def _check_options(workers: Workers, *, on_cpu: bool) -> None:
    """Raises ConfigError if the options ask for more host memory than is available for all workers together. What each
    worker asks for alone, it checks itself."""
    config = workers.config
    asked = {
        "--swap-space": int((config.swap_space or 0) * GIB),
        "--kv-cache-memory-bytes": (config.kv_cache_memory_bytes or 0) if on_cpu else 0,
    }
    flags = [flag for flag, num_bytes in asked.items() if num_bytes]
    needed, available = sum(asked.values()) * workers.count, available_memory()
    if available is None or needed <= available.num_bytes:
        return
    raise ConfigError(
        f"{' and '.join(flags)} {'takes' if len(flags) == 1 else 'take'} {in_words(needed)} for {workers.count} "
        f"workers, but {available.where} has {in_words(available.num_bytes)} of memory available; lower "
        f"{'it' if len(flags) == 1 else 'them'}, or the number of workers"
    )


def _share_memory(models: Sequence[Workers], on_cpu: Sequence[bool]) -> list[int | None]:
    """Divides the host's memory among the workers of several models: each gets what its weights and options take, and
    the workers on the CPU whose KV cache has its default size get equal parts of the rest. Returns the share of each
    model's workers, None for workers on GPUs. Raises ConfigError if the memory does not hold all models."""
    available = available_memory()
    if available is None:
        return [None] * len(models)
    needs = [memory_need(one.config, is_on_cpu) for one, is_on_cpu in zip(models, on_cpu, strict=True)]
    left = available.num_bytes
    for place, (workers, need) in enumerate(zip(models, needs, strict=True)):
        if need.num_bytes * workers.count > left:
            raise ConfigError(_does_not_fit(workers, need.words, need.num_bytes, available, left, models[:place]))
        left -= need.num_bytes * workers.count
    num_defaults = sum(one.count for one, need in zip(models, needs, strict=True) if need.has_default_cache)
    rest = left // max(1, num_defaults)
    return [
        need.num_bytes + (rest if need.has_default_cache else 0) if is_on_cpu else None
        for need, is_on_cpu in zip(needs, on_cpu, strict=True)
    ]


def _does_not_fit(
    workers: Workers, words: str, num_bytes: int, available: Available, left: int, before: Sequence[Workers]
) -> str:
    copies = "" if workers.count == 1 else f" for each of its {workers.count} workers"
    others = ""
    if before:
        others = f", of which {', '.join(one.model for one in before)} leave{'s' if len(before) == 1 else ''} "
        others += in_words(left)
    return (
        f"the model {workers.model} does not fit: it takes {in_words(num_bytes)}{copies} ({words}), but "
        f"{available.where} has {in_words(available.num_bytes)} of memory available{others}; serve fewer models, "
        "quantize them, or lower what their options ask for"
    )
