"""A worker that has started on a simulated GPU, as its process would on a real one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models

from services.worker.config import WorkerConfig
from services.worker.startup.load import load_worker
from services.worker.step.model_runner import ModelRunner
from shared.config import resolve
from tests.simulated_gpu import SimulatedGPU
from tests.unit.worker.driver import Request
from tests.unit.worker.tiny_models import VOCAB_SIZE, reference_logits


@contextmanager
def serving(
    model: Path,
    *arguments: str,
    num_blocks: int | None = 24,
    dtype: str = "float32",
    max_num_seqs: int = 3,
    max_num_tokens: int = 12,
    swap_space: float | None = 0.0,
    gpu: SimulatedGPU | None = None,
) -> Iterator[tuple[SimulatedGPU, ModelRunner]]:
    """Under the rules of serving, once it has started. `model`: a checkpoint, or a file of one. `swap_space`: GiB; None
    leaves the option out, and its default holds a million of these models' blocks."""
    gpu = SimulatedGPU() if gpu is None else gpu
    options = [str(model), "--device", "cuda", "--dtype", dtype, "--block-size", "8"]
    options += ["--max-num-seqs", str(max_num_seqs), "--max-num-batched-tokens", str(max_num_tokens), *arguments]
    options += [] if num_blocks is None else ["--num-gpu-blocks-override", str(num_blocks)]
    options += [] if swap_space is None else ["--swap-space", str(swap_space)]
    with gpu.running():
        runner = load_worker(resolve(WorkerConfig, options, prog="test", description=""), lambda *_: None).runner
        with gpu.rules_of_serving():
            yield gpu, runner


def write_tokenizer(directory: Path) -> None:
    """Of the tiny models' vocabulary."""
    vocabulary = {f"t{index}": index for index in range(VOCAB_SIZE)}
    Tokenizer(models.BPE(vocabulary, [], unk_token="t0")).save(str(directory / "tokenizer.json"))


def prompts(*lengths: int) -> list[list[int]]:
    chance = random.Random(7)
    return [[chance.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]


def check(model: transformers.PreTrainedModel, requests: Sequence[Request], tolerance: float = 1e-4) -> None:
    """Every token is transformers' likeliest, or has a logit that is as great but for `tolerance`."""
    for request in requests:
        assert request.error is None
        logits = reference_logits(model, request.prompt + request.output[:-1])[len(request.prompt) - 1 :].float()
        drawn = logits.gather(1, torch.tensor(request.output)[:, None])
        assert (logits.amax(-1, keepdim=True) - drawn).amax() < tolerance
