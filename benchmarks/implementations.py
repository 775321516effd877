"""Measures a decode step of one network as Quire's own code and as transformers' code runs it, alternately:
SmolLM2-135M's and Llama-3.2-1B's shapes, the worker's CPU kernels.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.quantized_steps import decode_step
from benchmarks.shapes import B1, M135, Shape
from services.worker.implementations import Implementation
from services.worker.models.config import read_model_config
from shared.host_cores import physical_cores

SHAPES = {"135m": M135, "1b": B1}
IMPLEMENTATIONS: tuple[Implementation, ...] = ("native", "transformers")
BATCHES = (1, 8)
ROUNDS = 30


def measure() -> dict[str, float]:
    """Returns medians in milliseconds, and the ratio of transformers' code to Quire's own."""
    torch.set_num_threads(physical_cores())
    figures: dict[str, float] = {}
    with torch.inference_mode():
        for name, shape in SHAPES.items():
            for batch_size in BATCHES:
                medians = _compare(shape, batch_size)
                figures |= {f"{name}_{key}_ms_{batch_size}": median for key, median in medians.items()}
                figures[f"{name}_ratio_{batch_size}"] = medians["transformers"] / medians["native"]
    return figures


def _compare(shape: Shape, batch_size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory:
        shape.write(Path(directory))
        configs = {name: read_model_config(Path(directory), name) for name in IMPLEMENTATIONS}
        steps = {name: decode_step(config, lambda _, weight: weight, batch_size) for name, config in configs.items()}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(ROUNDS + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn >= 2:  # the first two turns are warm-up
                taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in taken.items()}
