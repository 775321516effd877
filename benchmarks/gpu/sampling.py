"""Measures sampling alone: the kernels from logits to tokens, by rows and sampling parameters.

The floor is the time to read the logits once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Work
from benchmarks.gpu.figures import Figure
from services.worker.ops.triton import Pipeline
from services.worker.plan import GeneratingSequence, SamplingParams
from services.worker.sampling.device_sampler import DeviceSampler

VOCABULARY = 128_256  # of Llama 3
ROWS = (1, 32, 128)
REPEATS = 10
ROTATED_BYTES = 256 << 20
WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8, seed=3),
    "min-p": SamplingParams(min_p=0.05, seed=9),
    "top-k": SamplingParams(temperature=0.9, top_k=20, seed=5),
    "top-p": SamplingParams(top_p=0.9, seed=7),
    "penalties": SamplingParams(
        temperature=0.7, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3, seed=11
    ),
    "everything": SamplingParams(
        temperature=0.8, top_k=50, top_p=0.95, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.1, seed=13,
        logit_bias=((5, 1.0),),
    ),
}  # fmt: skip
PROMPT = np.array([3, 5, 9, 5], np.uint32)


def measure(bench: Bench) -> Iterator[Figure]:
    vocabulary, numbers = (300, (2,)) if bench.dry_run else (VOCABULARY, ROWS)
    read = bench.ceilings.read
    for rows in numbers:
        num_bytes = rows * vocabulary * bench.dtype.itemsize
        num_copies = 1 if bench.dry_run else min(64, 1 + ROTATED_BYTES // num_bytes)
        copies = [3 * torch.randn(rows, vocabulary, device=bench.device).to(bench.dtype) for _ in range(num_copies)]
        for name, params in WAYS.items():
            taken = bench.clock.in_graph(_works(params, copies), REPEATS)
            yield Figure(f"{rows} rows, {name}", taken * 1e6, "us", num_bytes / read * 1e6)


def _works(params: SamplingParams, copies: list[Tensor]) -> list[Work]:
    """Returns what the sampler launches for each of the logits, without the host's part: no graph can record that."""
    rows, vocabulary = copies[0].shape
    sampler = DeviceSampler(copies[0].device, rows, vocabulary)
    for slot in range(rows):
        sampler.admit(_sequence(slot, params))
    calls: list[tuple[Any, ...]] = []
    run = Pipeline.run

    def recording(pipeline: Pipeline, *arguments: Any) -> tuple[Tensor, Tensor]:
        calls.append((pipeline, *arguments))
        return run(pipeline, *arguments)

    with patch.object(Pipeline, "run", recording):
        for logits in copies:
            sampler.sample(logits, np.arange(rows), np.full(rows, 4, np.int32))
    return [partial(run, *call) for call in calls]


def _sequence(slot: int, params: SamplingParams) -> GeneratingSequence:
    return GeneratingSequence(
        wire_id=slot + 1, slot=slot, token_ids=PROMPT, num_prompt_tokens=3, num_computed_tokens=0,
        block_ids=np.zeros(1, np.uint32), sampling=params, choice_index=0,
    )  # fmt: skip
