"""Start-up messages of a worker: to its log, and to the terminal of the user who starts it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from services.worker.config import WorkerConfig
from shared.status import StatusReporter

if TYPE_CHECKING:
    from services.worker.models import EncoderConfig, ModelConfig
    from services.worker.plan import Limits

logger = logging.getLogger(__name__)

# Above this --gpu-memory-utilization, too little memory is left for what the worker cannot measure: some allocations by
# torch and by the driver.
HIGHEST_SAFE_UTILIZATION = 0.97


def warn_of_options(config: WorkerConfig, device_type: str, status: StatusReporter) -> None:
    """Warns about risky options. Call it before the model is loaded, so that the user sees the warning even if loading
    fails."""
    if device_type != "cuda" or config.gpu_memory_utilization <= HIGHEST_SAFE_UTILIZATION:
        return
    text = (
        f"--gpu-memory-utilization is {config.gpu_memory_utilization:g}: above {HIGHEST_SAFE_UTILIZATION:g} "
        "the GPU may run out of memory while serving"
    )
    logger.warning("%s", text)
    status.note(text)


def tell_blocks(limits: Limits, device_type: str, status: StatusReporter) -> None:
    """Prints the numbers of KV blocks in vLLM's format. On a GPU, "GPU" is the number of blocks of the KV cache, and
    "CPU" that of the swap space. On a CPU, "CPU" is the number of blocks of the KV cache, and "swap" that of the swap
    space."""
    names = ("GPU", "CPU") if device_type == "cuda" else ("CPU", "swap")
    text = f"# {names[0]} blocks: {limits.num_blocks}, # {names[1]} blocks: {limits.num_host_blocks}"
    logger.info("%s", text)
    status.note(text)


def tell_model(model: ModelConfig | EncoderConfig, status: StatusReporter) -> None:
    """Says whose code computes the forward pass, and which parts of the model are not loaded."""
    for text in model.notes:
        logger.info("%s", text)
        status.note(text)
