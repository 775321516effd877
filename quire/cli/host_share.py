"""Checks before the start that a host has room for several workers, and gives each worker its GPU."""

from __future__ import annotations

from collections.abc import Mapping

from quire.cli.gpus import visible_gpus
from services.worker.config import WorkerConfig
from shared.config import ConfigError
from shared.host_memory import GIB, available_memory, in_words


def share_host(config: WorkerConfig, num_workers: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the GPU of each worker, as CUDA_VISIBLE_DEVICES names it; () if there is one worker, which chooses by
    itself, or if the workers run on the CPU. Raises ConfigError if the host has fewer GPUs than workers, or less memory
    than the options ask for."""
    if num_workers == 1:
        return ()
    kind, _, index = config.device.partition(":")
    if index:
        raise ConfigError(
            f"--device is {config.device}, but {num_workers} workers need {num_workers} GPUs; use --device cuda, and "
            "choose the GPUs with CUDA_VISIBLE_DEVICES"
        )
    gpus = () if kind == "cpu" else visible_gpus(environment)
    if len(gpus) < num_workers and (gpus or kind == "cuda"):
        where = "CUDA_VISIBLE_DEVICES shows" if environment.get("CUDA_VISIBLE_DEVICES") else "this host has"
        raise ConfigError(
            f"{num_workers} workers need {num_workers} GPUs, but {where} {len(gpus)}; lower the number of workers, or "
            "run them on the CPU with --device cpu"
        )
    _check_memory(config, num_workers, on_cpu=not gpus)
    return gpus[:num_workers]


def _check_memory(config: WorkerConfig, num_workers: int, *, on_cpu: bool) -> None:
    """Raises ConfigError if the options ask for more host memory than is available for all workers together. What each
    worker asks for alone, it checks itself."""
    asked = {
        "--swap-space": int((config.swap_space or 0) * GIB),
        "--kv-cache-memory-bytes": (config.kv_cache_memory_bytes or 0) if on_cpu else 0,
    }
    flags = [flag for flag, num_bytes in asked.items() if num_bytes]
    needed, available = sum(asked.values()) * num_workers, available_memory()
    if available is None or needed <= available.num_bytes:
        return
    raise ConfigError(
        f"{' and '.join(flags)} {'takes' if len(flags) == 1 else 'take'} {in_words(needed)} for {num_workers} workers, "
        f"but {available.where} has {in_words(available.num_bytes)} of memory available; lower "
        f"{'it' if len(flags) == 1 else 'them'}, or the number of workers"
    )
