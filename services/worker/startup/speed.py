"""Measures the step time and the swap time of a device once, at the start. The scheduler uses both to choose between
swapping and recomputing, until it has timed enough steps itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from services.worker.pages import PageCopies
from services.worker.plan import U32, GeneratingSequence, NewSequence, PoolingSequence, Rows, SamplingParams, StepPlan
from services.worker.pooling import PoolingParams
from services.worker.step import ModelRunner

_MOST_BLOCKS = 16
# Lengths, in tokens, of the prompts that are timed one after the other. After a step of more than _LONG_ENOUGH_S,
# longer prompts are skipped, so that a slow model on a CPU starts without waiting for them.
_PROMPT_TOKENS = (8, 32, 128)
_LONG_ENOUGH_S = 0.1


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of a worker, in seconds."""

    swap_per_block: float  # copy of one block to the host, or back
    step: float  # step of one token
    per_token: float  # each further token of a step


class Probe(Protocol):
    """Makes the prompts whose steps are timed."""

    num_drawn: int  # number of tokens sampled after the prompt

    def sequence(self, token_ids: U32, block_ids: U32) -> NewSequence:
        """Returns a sequence with wire id 1, in slot 0."""
        ...


class GenerationProbe:
    """See `Probe`. Samples one token."""

    num_drawn = 1

    def sequence(self, token_ids: U32, block_ids: U32) -> NewSequence:
        """See `Probe`."""
        greedy = SamplingParams(temperature=0.0)
        return GeneratingSequence(1, 0, token_ids, len(token_ids), 0, block_ids, greedy, choice_index=0)


class PoolingProbe:
    """See `Probe`. Samples nothing."""

    num_drawn = 0

    def sequence(self, token_ids: U32, block_ids: U32) -> NewSequence:
        """See `Probe`."""
        return PoolingSequence(1, 0, token_ids, len(token_ids), 0, block_ids, PoolingParams())


def measure_swap(copies: PageCopies, num_blocks: int, device: torch.device) -> float:
    """Returns the seconds to copy one block to the host, or back; 0 without swap space. The measurement writes to
    pages, so call the function before a sequence uses them."""
    count = min(_MOST_BLOCKS, num_blocks, copies.num_slots)
    if not count:
        return 0.0
    indices = np.arange(count)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        copies.save(indices, indices)
        copies.load(indices, indices)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds) / (2 * count)


def measure_steps(runner: ModelRunner, probe: Probe) -> tuple[float, float]:
    """Returns the seconds that a step of one token takes, and the seconds that each further token adds; both 0 if a
    step cannot hold two tokens. Also warms up thread pools and kernels."""
    limits = runner.limits
    room = min(
        limits.max_num_batched_tokens, limits.max_model_len - probe.num_drawn, limits.num_blocks * limits.block_size
    )
    if room < 2:
        return 0.0, 0.0
    _run_prompt(runner, probe, 1)
    short = min(_run_prompt(runner, probe, 1) for _ in range(2))
    for num_tokens in _PROMPT_TOKENS:
        num_tokens = min(num_tokens, room)
        long = _run_prompt(runner, probe, num_tokens)
        if long > _LONG_ENOUGH_S:
            break
    return short, max(0.0, long - short) / (num_tokens - 1)


def _run_prompt(runner: ModelRunner, probe: Probe, num_tokens: int) -> float:
    """Runs a prompt of `num_tokens` in one step and returns the seconds that the step took. Then resets the runner, so
    that it forgets the prompt's sequence."""
    zero, one = np.zeros(1, np.uint32), np.ones(1, np.uint32)
    num_blocks = -(-num_tokens // runner.limits.block_size)
    sequence = probe.sequence(np.zeros(num_tokens, np.uint32), np.arange(num_blocks, dtype=np.uint32))
    rows = Rows(one, zero, one * np.uint32(num_tokens), zero, np.zeros(2, np.uint32), np.zeros(0, np.uint32))
    start = time.monotonic()
    runner.collect(runner.launch(StepPlan(0, 1, np.zeros(0, np.uint32), (sequence,), rows), start))
    seconds = time.monotonic() - start
    runner.reset()
    return seconds
