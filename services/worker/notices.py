"""What a worker tells at its start, in its log and to the person who starts it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from services.worker.config import WorkerConfig
from shared.status import StatusReporter

if TYPE_CHECKING:
    from services.worker.batch_state import Limits

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
    """The line that vLLM prints for a GPU. On a CPU, what it calls CPU blocks is the KV cache itself."""
    names = ("GPU", "CPU") if device_type == "cuda" else ("CPU", "swap")
    text = f"# {names[0]} blocks: {limits.num_blocks}, # {names[1]} blocks: {limits.num_host_blocks}"
    logger.info("%s", text)
    status.note(text)
