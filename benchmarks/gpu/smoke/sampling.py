"""Checks that the device's sampler returns the same tokens for the same logits as the host's sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np
import torch

from benchmarks.gpu.cases import Case, Setting
from benchmarks.gpu.smoke.oracle import DTYPES, draw, same, worst_error
from services.worker.ops.reference import ReferenceOps
from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.step_plan import GeneratingSequence
from services.worker.sampling.device_sampler import DeviceSampler
from services.worker.sampling.host_sampler import HostSampler
from services.worker.sampling.token_mask import TokenMask

DEVICE = torch.device("cuda", 0)
VOCABULARIES = (128_256, 152_064, 32_000, 49_152)  # Llama 3, Qwen, Llama 2, SmolLM2
WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(temperature=0.8, seed=3),
    "top-k": SamplingParams(temperature=0.9, top_k=20, seed=5),
    "top-p": SamplingParams(top_p=0.9, seed=7),
    "min-p": SamplingParams(min_p=0.05, seed=9),
    "penalties": SamplingParams(
        temperature=0.7, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3, seed=11
    ),
    "biases": SamplingParams(temperature=0.0, logit_bias=((5, 100.0), (7, -100.0))),
    "everything": SamplingParams(
        temperature=0.8, top_k=50, top_p=0.95, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.1, seed=13,
        logit_bias=((5, 1.0),), logprobs=20,
    ),
}  # fmt: skip
PROMPT = np.array([3, 5, 9, 5], np.uint32)


def cases(setting: Setting) -> Mapping[str, Callable[[], Iterable[Case]]]:
    vocabularies = (300,) if setting.dry_run else VOCABULARIES
    return {f"sampling {size}": partial(_of_vocabulary, setting, size) for size in vocabularies}


def _of_vocabulary(setting: Setting, vocab_size: int) -> Iterator[Case]:
    for name in ("fp32",) if setting.dry_run else ("bf16", "fp32"):
        for rows in (3,) if setting.dry_run else (1, 16, 128):
            for way, params in WAYS.items():
                if rows == 128 and not params.greedy:
                    continue  # the host sampler would take seconds
                yield Case(f"{way}, {rows} rows, {name}", partial(_draw, vocab_size, DTYPES[name], rows, params))
            yield Case(f"masked, {rows} rows, {name}", partial(_masked, vocab_size, DTYPES[name], rows))
            logprobs = SamplingParams(temperature=0.0, logprobs=20)
            yield Case(f"logprobs, {rows} rows, {name}", partial(_logprobs, vocab_size, DTYPES[name], rows, logprobs))
            given = partial(_given_logprobs, vocab_size, DTYPES[name], rows)
            yield Case(f"logprobs of given tokens, {rows} rows, {name}", given)


def _admitted(slot: int, params: SamplingParams) -> GeneratingSequence:
    return GeneratingSequence(
        wire_id=slot + 1, slot=slot, token_ids=PROMPT, num_prompt_tokens=3, num_computed_tokens=0,
        block_ids=np.zeros(1, np.uint32), sampling=params, choice_index=0,
    )  # fmt: skip


def _draw(vocab_size: int, dtype: torch.dtype, rows: int, params: SamplingParams) -> float:
    logits = draw(rows, vocab_size, dtype=dtype, device=DEVICE, scale=3.0)
    on_device = DeviceSampler(DEVICE, rows, vocab_size)
    host = torch.device("cpu")
    on_host = HostSampler(ReferenceOps(host, torch.float32), rows, vocab_size)
    for slot in range(rows):
        on_device.admit(_admitted(slot, params))
        on_host.admit(_admitted(slot, params))
    slots, positions = np.arange(rows), np.full(rows, 4, np.int32)
    got = on_device.sample(logits, slots, positions)
    expected = on_host.sample(logits.float().cpu(), slots, positions)
    if not bool(got.valid.all()):
        raise AssertionError("no token was sampled for a row")
    return _almost_same(got.tokens.cpu(), expected.tokens)


def _almost_same(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the fraction of rows that differ. Up to one row in 16 may differ, because sums of 128,256 floats differ
    in their last bits, which can move the border of top-p by one token."""
    wrong = int((got != expected).sum())
    if wrong > len(expected) // 16:
        raise AssertionError(f"{wrong} of {len(expected)} tokens differ from the host sampler's")
    return wrong / len(expected)


def _masked(vocab_size: int, dtype: torch.dtype, rows: int) -> float:
    """Tests masks that leave one token per row."""
    logits = draw(rows, vocab_size, dtype=dtype, device=DEVICE)
    sampler = DeviceSampler(DEVICE, rows, vocab_size)
    allowed = np.arange(rows) * 2 + 1
    bits = np.zeros((rows, -(-vocab_size // 32)), np.uint32)
    bits[np.arange(rows), allowed // 32] = np.uint32(1) << (allowed % 32).astype(np.uint32)
    for slot in range(rows):
        sampler.admit(_admitted(slot, SamplingParams(temperature=0.0)))
    mask = TokenMask(np.arange(rows), torch.from_numpy(bits.view(np.int32)).to(DEVICE))
    sample = sampler.sample(logits, np.arange(rows), np.full(rows, 4, np.int32), mask)
    return same(sample.tokens.cpu(), torch.from_numpy(allowed))


def _logprobs(vocab_size: int, dtype: torch.dtype, rows: int, params: SamplingParams) -> float:
    logits = draw(rows, vocab_size, dtype=dtype, device=DEVICE, scale=3.0)
    sampler = DeviceSampler(DEVICE, rows, vocab_size)
    for slot in range(rows):
        sampler.admit(_admitted(slot, params))
    sample = sampler.sample(logits, np.arange(rows), np.full(rows, 4, np.int32))
    assert sample.logprobs is not None
    exact = torch.log_softmax(logits.double(), -1)
    same(logits.gather(1, sample.tokens[:, None])[:, 0], logits.amax(-1))
    drawn = exact.gather(1, sample.tokens[:, None])[:, 0]
    top = exact.topk(20).values
    return max(
        worst_error(sample.logprobs.logprobs, drawn, limit=1e-4),
        worst_error(sample.logprobs.top_logprobs, top, limit=1e-4),
    )


def _given_logprobs(vocab_size: int, dtype: torch.dtype, rows: int) -> float:
    """Tests log probabilities of tokens that the request names, in the order of their log probabilities."""
    token_ids = (7, 31, vocab_size - 1)
    params = SamplingParams(temperature=0.0, logprobs=0, logprob_token_ids=token_ids)
    logits = draw(rows, vocab_size, dtype=dtype, device=DEVICE, scale=3.0)
    sampler = DeviceSampler(DEVICE, rows, vocab_size)
    for slot in range(rows):
        sampler.admit(_admitted(slot, params))
    sample = sampler.sample(logits, np.arange(rows), np.full(rows, 4, np.int32))
    assert sample.logprobs is not None
    exact = torch.log_softmax(logits.double(), -1)
    given = exact.index_select(1, torch.tensor(token_ids, device=DEVICE)).sort(dim=1, descending=True).values
    got = sample.logprobs.top_logprobs[:, : len(token_ids)]
    same(exact.gather(1, sample.logprobs.top_token_ids[:, : len(token_ids)].long()).sort(1, True).values, given)
    return worst_error(got, given, limit=1e-4)
