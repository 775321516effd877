"""A whole model on the device: transformers' tokens, the same bits in any company, and from recorded steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models

from services.worker.config import WorkerConfig
from services.worker.ops.triton.ops import TritonOps
from services.worker.plan.sampling_params import SamplingParams
from services.worker.startup.load import LoadedWorker, load_worker
from services.worker.step.graphs import GraphRecorder, Replay
from shared.config import resolve
from tests.unit.worker.driver import GREEDY, Driver, Request
from tests.unit.worker.tiny_models import VOCAB_SIZE, NearTies, make_runner, save_model

# Heads of 64, so that the tiles are those that are served.
SHAPE = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 512}
LENGTHS = (1, 5, 16, 33, 70, 150)
NUM_OUTPUTS = 12


def prompts(sampling: SamplingParams = GREEDY) -> list[Request]:
    chooser = random.Random(5)
    return [
        Request([chooser.randrange(3, VOCAB_SIZE) for _ in range(length)], NUM_OUTPUTS, sampling) for length in LENGTHS
    ]


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_greedy_tokens_in_float32_are_transformers_own(
    cuda: torch.device, tmp_path: Path, family: str, batch_invariant: bool
) -> None:
    model = save_model(tmp_path, family, **SHAPE)
    runner = make_runner(tmp_path, ops=TritonOps(cuda, torch.float32, batch_invariant=batch_invariant))
    ties = NearTies()
    for request in Driver(runner, seed=3, max_chunk=40).run(*prompts()):
        assert request.error is None
        ties.check(model, request.prompt, request.output)
    ties.report()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_batch_invariant_tokens_and_logprobs_are_the_same_bits_in_any_company(
    cuda: torch.device, tmp_path: Path, dtype: torch.dtype
) -> None:
    save_model(tmp_path, "Llama", **SHAPE)
    runner = make_runner(tmp_path, num_blocks=256, ops=TritonOps(cuda, dtype, batch_invariant=True))
    sampling = SamplingParams(temperature=0.8, seed=7, top_p=0.9, logprobs=5)
    alone = []
    for request in prompts(sampling):
        runner.reset()
        alone += Driver(runner, seed=0, max_chunk=256, idle=0.0, depth=1).run(request)
    for seed, max_chunk in ((1, 1), (2, 7), (3, 64)):
        runner.reset()
        mixed, others = prompts(sampling), prompts(SamplingParams(temperature=1.0, seed=seed))
        Driver(runner, seed=seed, max_chunk=max_chunk).run(*mixed, *others)
        for request, expected in zip(mixed, alone, strict=True):
            assert request.output == expected.output
            assert request.logprobs == expected.logprobs  # floats, compared bit for bit


def engine(directory: Path, *arguments: str) -> LoadedWorker:
    options = [str(directory), "--device", "cuda", "--dtype", "bfloat16", "--num-gpu-blocks-override", "256"]
    options += ["--max-num-seqs", "16", "--max-num-batched-tokens", "256", "--batch-invariant", *arguments]
    return load_worker(resolve(WorkerConfig, options, prog="test", description=""), lambda _detail, _progress: None)


def test_recorded_steps_draw_what_launched_ones_draw(
    cuda: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch-invariant, so that the rows that fill a recorded step up leave the others' bits alone."""
    replays: list[Replay] = []
    record = GraphRecorder.record

    def counted(self: GraphRecorder, run: Callable[[], None]) -> Replay:
        replay = record(self, run)

        def noted() -> None:
            replays.append(replay)
            replay()

        return noted

    monkeypatch.setattr(GraphRecorder, "record", counted)
    save_model(tmp_path, "Llama", **SHAPE)
    vocabulary = {f"t{index}": index for index in range(VOCAB_SIZE)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="t0")).save(str(tmp_path / "tokenizer.json"))
    answers, num_replays = [], []
    for arguments in ((), ("--enforce-eager",)):
        runner = engine(tmp_path, *arguments).runner
        replays.clear()
        requests = prompts(SamplingParams(temperature=0.8, seed=7, logprobs=2))
        Driver(runner, seed=4, max_chunk=64).run(*requests)
        answers.append([(request.error, request.output, request.logprobs) for request in requests])
        num_replays.append(len(replays))
    recorded, launched = answers
    assert recorded == launched
    assert all(error is None for error, _, _ in launched)
    assert num_replays[0] >= NUM_OUTPUTS // 2
    assert num_replays[1] == 0
