"""What a worker tells at its start, in its log and to the person who starts it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from services.worker.config import WorkerConfig
from shared.status import StatusReporter

if TYPE_CHECKING:
    from services.worker.plan import Limits

logger = logging.getLogger(__name__)

# Above this, little is left for what torch and the driver take beside what is measured.
HIGHEST_SAFE_UTILIZATION = 0.97


def warn_of_options(config: WorkerConfig, device_type: str, status: StatusReporter) -> None:
    """Before anything is loaded, as loading may be what fails."""
    if device_type != "cuda" or config.gpu_memory_utilization <= HIGHEST_SAFE_UTILIZATION:
        return
    text = (
        f"--gpu-memory-utilization is {config.gpu_memory_utilization:g}: above {HIGHEST_SAFE_UTILIZATION:g} "
        "the GPU may run out of memory while serving"
    )
    logger.warning("%s", text)
    status.note(text)


def tell_blocks(limits: Limits, device_type: str, status: StatusReporter) -> None:
    """Prints vLLM's line about memory: for a GPU the blocks of its KV cache and of the swap space in host memory. On a
    CPU the KV cache itself is in host memory, so the line calls its blocks CPU blocks."""
    names = ("GPU", "CPU") if device_type == "cuda" else ("CPU", "swap")
    text = f"# {names[0]} blocks: {limits.num_blocks}, # {names[1]} blocks: {limits.num_host_blocks}"
    logger.info("%s", text)
    status.note(text)
