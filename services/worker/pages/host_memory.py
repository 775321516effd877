"""Checks whether swap space and other options fit into the host's memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from services.worker.errors import ModelError
from shared.host_memory import GIB, Available, available_memory, in_words, total_memory

logger = logging.getLogger(__name__)

# Default swap space of a GPU worker, as in vLLM. A CPU worker has none by default, because its KV blocks are in host
# memory already.
DEFAULT_GPU_BYTES = 4 * GIB
# The default swap space is at most this fraction of the available memory, so that several workers fit on a host.
_DEFAULT_FRACTION = 0.25


@dataclass(frozen=True, slots=True)
class Asked:
    """Memory that a command-line option asks for, in bytes."""

    flag: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SwapSpace:
    num_bytes: int
    option: float | None = None  # GiB given by --swap-space; None: the default

    @property
    def asked(self) -> tuple[Asked, ...]:
        return () if self.option is None else (Asked("--swap-space", self.num_bytes),)


def require(available: Available | None, *asked: Asked) -> None:
    """Raises ModelError if the options together ask for more memory than is available. Linux commits memory only when
    it is first written, so without this check, the kernel would kill a process later, without a message."""
    total = sum(one.num_bytes for one in asked)
    if available is None or total <= available.num_bytes:
        return
    sizes = " and ".join(f"{one.flag} takes {in_words(one.num_bytes)}" for one in asked)
    raise ModelError(
        f"{sizes}, but {available.where} has {in_words(available.num_bytes)} of memory available; "
        f"lower {'it' if len(asked) == 1 else 'them'}"
    )


def resolve_swap_space(option: float | None, device_type: str, num_workers: int = 1) -> SwapSpace:
    """Returns swap space of `option` GiB; None: the default size. `num_workers`: number of workers on this host, which
    share what the default takes. Raises ModelError if `option` exceeds the available memory."""
    if option is not None:
        swap = SwapSpace(int(option * GIB), option)
        require(available_memory(), *swap.asked)
        return swap
    if device_type != "cuda":
        return SwapSpace(0)
    available = available_memory()
    if available is None or available.num_bytes * _DEFAULT_FRACTION >= DEFAULT_GPU_BYTES * num_workers:
        return SwapSpace(DEFAULT_GPU_BYTES)
    swap = SwapSpace(int(available.num_bytes * _DEFAULT_FRACTION) // num_workers)
    logger.warning(
        "the swap space is %.1f GiB instead of %.1f: %s has %.1f GiB of memory available, and the default of %s takes "
        "a quarter at most; --swap-space sets it",
        swap.num_bytes / GIB, DEFAULT_GPU_BYTES / GIB, available.where, available.num_bytes / GIB,
        "one worker" if num_workers == 1 else f"{num_workers} workers",
    )  # fmt: skip
    return swap


def require_memory(num_bytes: int, purpose: str, num_workers: int = 1) -> None:
    """Raises ModelError if the host or the container has less than `num_bytes` of memory in total for each of its
    `num_workers` workers. Call it before allocating the memory, because Linux kills a process that uses too much
    memory, without a message."""
    total = total_memory()
    if total is not None and num_bytes * num_workers > total.num_bytes:
        copies = "" if num_workers == 1 else f" for each of {num_workers} workers"
        raise ModelError(
            f"{purpose} take {num_bytes / GIB:,.1f} GiB{copies}, but {total.where} has "
            f"{total.num_bytes / GIB:,.1f} GiB of memory; take a smaller model, or quantize it with --quantization"
        )
