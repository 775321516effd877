"""Steps over made-up sequences, which run before the first request to compile kernels and to measure memory.

Each function resets the runner at its end, so that the runner forgets the made-up sequences. These sequences share
block 0, which no request uses yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from services.worker.plan import (
    U32,
    GeneratingSequence,
    Limits,
    NewSequence,
    PoolingSequence,
    Rows,
    SamplingParams,
    StepPlan,
)
from services.worker.pooling import PoolingParams
from services.worker.step import ModelRunner
from shared.sampling_ranges import MAX_LOGPROBS

EVERYTHING = SamplingParams(
    temperature=1.0, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.1, presence_penalty=0.1,
    frequency_penalty=0.1, logit_bias=((0, 1.0),), logprobs=MAX_LOGPROBS,
    prompt_logprobs=MAX_LOGPROBS,
)  # fmt: skip
# Sampling parameters for warm-up. A batch's parameters decide which sampling kernels run and how they are specialized.
SAMPLING = (SamplingParams(temperature=0.0), SamplingParams(), EVERYTHING)
_PROMPT_TOKENS = 17
# Numbers of tokens of warm-up steps. A matrix product is compiled once for each class of row counts (`TileTable` in
# `ops/triton/tiles.py`) and once for dequantized weights (`ops/triton/dequantize.py`, from 256 rows on), and the steps
# cover all of them. The steps have as many sequences as possible, so that they cover the classes of the output layer,
# too: it has only one row per sequence that samples.
_STEP_TOKENS = (32, 64, 128, 256)


def warm_up(runner: ModelRunner) -> None:
    """Runs every kernel that serving uses, so that none is compiled later: chunks and decodes, mixed and separate, each
    sampling method, steps of few and of many tokens, pooling, and a copy of blocks."""
    limits = runner.limits
    num_rows = min(2, limits.max_num_seqs, limits.max_num_batched_tokens)
    room = min(limits.max_num_batched_tokens - num_rows, limits.max_model_len - 2)
    if room < 0:
        return
    lengths = [min(_PROMPT_TOKENS, 1 + room), 1][:num_rows]
    for sampling in SAMPLING:
        _run_prompts(runner, lengths, partial(_generating, sampling))
        _run(runner, (), lengths, [1] * num_rows, copy=limits.num_blocks > 1)
        runner.reset()
    for num_tokens in _STEP_TOKENS:
        if num_tokens <= limits.max_num_batched_tokens:
            _run_prompts(runner, _spread(num_tokens, limits), partial(_generating, SAMPLING[0]))
            runner.reset()
    _run_prompts(runner, lengths[:1], _pooling)
    runner.reset()


def run_largest_step(runner: ModelRunner) -> None:
    """Runs a step with the maximum number of tokens and sequences, in which every sequence samples."""
    limits = runner.limits
    # There are no penalties or biases, because memory for them is allocated only when a sequence asks for them.
    sampling = SamplingParams(top_k=5, top_p=0.9, logprobs=MAX_LOGPROBS, prompt_logprobs=MAX_LOGPROBS)
    _run_prompts(runner, _spread(limits.max_num_batched_tokens, limits), partial(_generating, sampling))
    runner.reset()


def _spread(num_tokens: int, limits: Limits) -> list[int]:
    """Divides `num_tokens` evenly among as many prompts as one step can hold, and returns their lengths."""
    num_rows = min(limits.max_num_seqs, num_tokens)
    short, num_longer = divmod(num_tokens, num_rows)
    return [min(short + (row < num_longer), limits.max_model_len) for row in range(num_rows)]


def _generating(sampling: SamplingParams, slot: int, token_ids: U32, block_ids: U32) -> NewSequence:
    return GeneratingSequence(
        slot + 1, slot, token_ids, len(token_ids), 0, block_ids, sampling, choice_index=0, prompt_logprobs_from=1
    )


def _pooling(slot: int, token_ids: U32, block_ids: U32) -> NewSequence:
    return PoolingSequence(slot + 1, slot, token_ids, len(token_ids), 0, block_ids, PoolingParams())


def _run_prompts(runner: ModelRunner, lengths: Sequence[int], make: Callable[[int, U32, U32], NewSequence]) -> None:
    """Runs prompts of these lengths in one step, in the slots from 0 on. `make` creates a sequence from its slot,
    tokens and blocks."""
    limits = runner.limits

    def blocks(length: int) -> U32:
        return np.zeros(min(length // limits.block_size + 1, limits.max_blocks_per_sequence), np.uint32)

    sequences = tuple(make(slot, np.zeros(length, np.uint32), blocks(length)) for slot, length in enumerate(lengths))
    _run(runner, sequences, [0] * len(lengths), lengths)


def _run(
    runner: ModelRunner,
    sequences: tuple[NewSequence, ...],
    computed: Sequence[int],
    scheduled: Sequence[int],
    *,
    copy: bool = False,
) -> None:
    slots = np.arange(len(scheduled), dtype=np.uint32)
    no_blocks = np.zeros(len(slots) + 1, np.uint32), np.zeros(0, np.uint32)
    rows = Rows(slots + np.uint32(1), slots, _column(scheduled), _column(computed), *no_blocks)
    copies = {"copy_sources": _column([0]), "copy_destinations": _column([1])} if copy else {}
    step = runner.launch(StepPlan(0, 1, _column([]), sequences, rows, **copies), 0.0)
    runner.collect(step)
    # An error of the step or of a sequence stops the worker's start. While serving, it would fail only the sequences of
    # the step.
    if step.error is not None:
        raise step.error
    for error in step.batch.failed:
        raise torch.OutOfMemoryError(error.message)


def _column(values: Sequence[int]) -> U32:
    return np.array(values, np.uint32)
