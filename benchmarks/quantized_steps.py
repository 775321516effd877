"""Measures a decode step with each weight format and with float32: SmolLM2-135M's architecture, the worker's CPU
kernels, alternately. The floor is the time to read the weights once.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.cpu_gemm import read_bandwidth
from benchmarks.quantization import Quantizer, Quantizing, schemes
from benchmarks.shapes import M135
from services.worker.models.config import ModelConfig, read_model_config
from services.worker.ops.interface import AttentionBatch
from services.worker.pages.kv_cache import allocate_pages
from services.worker.startup.create_ops import create_ops
from services.worker.weights import load_decoder
from services.worker.weights.dummy_source import DummySource
from shared.host_cores import physical_cores

CPU = torch.device("cpu")
BATCHES = (1, 8, 32)
CONTEXT = 256
BLOCK_SIZE = 32
ROUNDS = 15


def decode_step(config: ModelConfig, quantize: Quantizer, batch_size: int) -> Callable[[], object]:
    """Returns a function that runs a decode step of `batch_size` sequences with CONTEXT tokens each."""
    ops = create_ops(CPU, torch.float32)
    source = Quantizing(DummySource(config.parameters, CPU, torch.float32), quantize)
    decoder = load_decoder(config, ops, source, CONTEXT)
    shapes = {heads.shape(BLOCK_SIZE, torch.float32, torch.float32) for heads in config.attention}
    ops.prepare_attention(shapes, batch_size, batch_size)
    blocks_each = CONTEXT // BLOCK_SIZE
    pages = allocate_pages(config, batch_size * blocks_each, BLOCK_SIZE, CPU, torch.float32)
    batch = AttentionBatch(
        torch.full((batch_size,), CONTEXT - 1, dtype=torch.int32),
        torch.arange(batch_size + 1, dtype=torch.int32),
        torch.arange(batch_size * blocks_each, dtype=torch.int32).view(batch_size, blocks_each),
    )
    ids, rows = torch.arange(batch_size) + 100, torch.arange(batch_size)
    return lambda: decoder.logits(decoder.hidden_states(ids, batch, pages, rows))


def measure() -> dict[str, float]:
    """Returns medians in milliseconds."""
    with torch.inference_mode():
        return compare()


def compare() -> dict[str, float]:
    torch.set_num_threads(physical_cores())
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory:
        M135.write(Path(directory))
        config = read_model_config(Path(directory))
    # The embeddings are also the output layer. Vectors are too small to matter.
    num_weights = sum(shape[0] * shape[1] for shape in config.parameters.values() if len(shape) == 2)
    figures = {"float32_floor_ms": 4e3 * num_weights / read_bandwidth()}
    forms = {name: form for name, form in schemes(config).items() if name != "fp8"}
    for batch_size in BATCHES:
        steps = {name: decode_step(config, form, batch_size) for name, form in forms.items()}
        taken: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(ROUNDS + 2):
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                if turn >= 2:  # the first two turns are warm-up
                    taken[name].append(1e3 * (time.perf_counter() - start))
        medians = {name: statistics.median(times) for name, times in taken.items()}
        for name, median in medians.items():
            figures[f"{name}_ms_{batch_size}"] = median
            figures[f"{name}_speedup_{batch_size}"] = medians["float32"] / median
    return figures
