"""Whole steps as a GPU runs them: inputs in place, rows by slot, graphs for decode-only steps, results behind an event.

A recorder that remembers calls stands in for CUDA's graphs where there is no GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from services.scheduler.core.config import PreemptionMode
from services.worker.ops.triton import dependent_launch
from services.worker.ops.triton.dependent_launch import launch_arguments
from services.worker.ops.triton.ops import TritonOps
from services.worker.ops.triton.sampling.pipeline import Pipeline
from services.worker.plan.batch import I32, I64, Batch
from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.step_plan import GeneratingSequence
from services.worker.sampling.device_sampler import DeviceSampler
from services.worker.startup.warm_up import run_largest_step, warm_up
from services.worker.step.device_forward_pass import DeviceForwardPass
from services.worker.step.graphs import GraphRecorder, bucket_sizes
from services.worker.step.model_runner import ModelRunner
from tests.integration.engine.test_scheduler_with_model import Engine
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import VOCAB_SIZE, NearTies, make_runner, save_model
from tests.unit.worker.triton.conftest import HAS_GPU
from tests.unit.worker.triton.remembering import RememberingRecorder

WINDOWS = {"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}


def runner_of(
    directory: Path, device: torch.device, *, batch_invariant: bool = False, num_host_blocks: int = 0
) -> ModelRunner:
    ops = TritonOps(device, torch.float32, batch_invariant=batch_invariant)
    return make_runner(
        directory, block_size=8, num_blocks=24, max_num_seqs=6, max_num_batched_tokens=40, ops=ops,
        num_host_blocks=num_host_blocks,
    )  # fmt: skip


def test_buckets_leave_few_tokens_for_nobody() -> None:
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(6) == [1, 2, 4, 6]
    assert bucket_sizes(40) == [1, 2, 4, 8, 16, 24, 32, 40]
    assert bucket_sizes(300) == [1, 2, 4, *range(8, 257, 8), 288, 300]


@pytest.mark.skipif(HAS_GPU, reason="the interpreter stands in for launches that are not dependent")
def test_graphs_of_few_sequences_launch_dependently(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependent_launch, "_most_sequences", lambda: 2)
    monkeypatch.setattr(dependent_launch, "ON", {"PDL": False, "marked": True})
    save_model(tmp_path, "Llama")
    runner = runner_of(tmp_path, device)
    seen = []

    class Noting:
        def record(self, run: Callable[[], None]) -> Callable[[], None]:
            seen.append("marked" in launch_arguments())
            return run

    runner.record_graphs(Noting(), runner.graph_buckets)
    assert dict(zip(sorted(runner.graph_buckets, reverse=True), seen, strict=True)) == {
        6: False, 4: False, 2: True, 1: True,
    }  # fmt: skip
    assert "marked" not in launch_arguments()


@pytest.mark.parametrize(
    ("family", "batch_invariant"), [pytest.param("Llama", False, marks=pytest.mark.thorough), ("Qwen3", True)]
)
def test_tokens_are_transformers_own_in_mixed_steps_and_in_padded_graphs(
    device: torch.device, tmp_path: Path, family: str, batch_invariant: bool
) -> None:
    model = save_model(tmp_path, family, **(WINDOWS if family == "Qwen3" else {"num_hidden_layers": 2}))
    runner = runner_of(tmp_path, device, batch_invariant=batch_invariant)
    recorder = RememberingRecorder()
    runner.record_graphs(recorder, runner.graph_buckets)
    chooser = random.Random(1)
    lengths = (17, 3, 30, 1, 9)
    sampling = SamplingParams(temperature=0.0, logprobs=2)
    requests = [Request([chooser.randrange(VOCAB_SIZE) for _ in range(length)], 5, sampling) for length in lengths]
    Driver(runner, seed=3, max_chunk=12, idle=0.2).run(*requests)
    # Recorded are 6, 4, 2, 1: three sequences ran as four, five as six.
    assert len(set(recorder.replayed)) > 1
    ties = NearTies()
    for request in requests:
        assert request.error is None
        ties.check(model, request.prompt, request.output)
        for (logprob, top), token in zip(request.logprobs, request.output, strict=True):
            assert top[0] == (token, logprob)
    ties.report()


def test_a_step_runs_in_the_smallest_bucket_that_holds_it(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, "Llama", num_hidden_layers=1)
    runner = runner_of(tmp_path, device)
    recorder = RememberingRecorder()
    runner.record_graphs(recorder, [2, 6, 4])
    seen: list[tuple[int, bool, list[int]]] = []  # rows, whether all have one token, and what was replayed
    run = DeviceForwardPass.run

    def noted(self: DeviceForwardPass, batch: Batch, tables: I32, last: Tensor, wanted: I64) -> Tensor:
        before = len(recorder.replayed)
        hidden = run(self, batch, tables, last, wanted)
        decodes = len(batch.token_ids) == len(batch.slots)
        seen.append((len(batch.slots), decodes, recorder.replayed[before:]))
        return hidden

    monkeypatch.setattr(DeviceForwardPass, "run", noted)
    Driver(runner, seed=5, max_chunk=3, idle=0.3).run(*(Request([7] * length, 12) for length in (1, 2, 5, 9, 3, 4)))
    # Recorded are 6, 4 and 2, in this order.
    smallest = {1: 2, 2: 2, 3: 1, 4: 1, 5: 0, 6: 0}
    assert all(replayed == ([smallest[num_rows]] if decodes else []) for num_rows, decodes, replayed in seen)
    assert {2, 3, 4, 5} <= {num_rows for num_rows, decodes, _ in seen if decodes}
    assert not all(decodes for _, decodes, _ in seen)


@pytest.mark.thorough
def test_what_pads_a_bucket_writes_no_page(device: torch.device, tmp_path: Path) -> None:
    """Nor does recording, whose steps have no tokens."""
    save_model(tmp_path, "Llama", num_hidden_layers=1)
    runner = runner_of(tmp_path, device)
    pages = runner._copies._tensors  # type: ignore[attr-defined]
    warm_up(runner)
    with torch.inference_mode():
        for tensor in pages:
            tensor.zero_()
    runner.record_graphs(RememberingRecorder(), runner.graph_buckets)
    assert not any(tensor.any() for tensor in pages)
    driver = Driver(runner, seed=2, max_chunk=1, depth=1, max_running=3, preempt=0.0)
    driver.run(*(Request([5, 6, 7], 3) for _ in range(3)))
    # Three sequences of five tokens ran in a graph of four: one block each, five of its eight slots written.
    for tensor in pages:
        written = tensor.abs().sum(dim=(1, 3)).ne(0)  # [blocks, slots]
        assert written.sum(dim=1).unique().tolist() == [0, 5]


@pytest.mark.parametrize("num_host_blocks", [pytest.param(0, marks=pytest.mark.thorough), 24])
def test_tokens_from_shared_copied_and_swapped_blocks_are_transformers_own(
    device: torch.device, tmp_path: Path, num_host_blocks: int
) -> None:
    model = save_model(tmp_path, "Llama", num_hidden_layers=1)
    ops = TritonOps(device, torch.float32)
    runner = make_runner(
        tmp_path, block_size=8, num_blocks=10, max_num_seqs=4, max_num_batched_tokens=48, ops=ops,
        num_host_blocks=num_host_blocks,
    )  # fmt: skip
    runner.record_graphs(RememberingRecorder(), runner.graph_buckets)
    engine = Engine(runner, preemption_mode=PreemptionMode.SWAP)
    chance = random.Random(3)
    common = [chance.randrange(3, VOCAB_SIZE) for _ in range(28)]
    prompts: dict[int, list[int]] = {}
    for key in range(8):
        fresh = common[: chance.randint(0, 28)] + [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 6))]
        prompts[key] = prompts[key - 1] if key % 2 else fresh
        engine.submit(key, prompts[key], chance.randint(4, 12), group=key // 2, choice_index=key % 2)
    engine.run()
    counters = engine.core.counters
    assert engine.num_copies > 0, "blocks were to be copied"
    assert counters.preemptions > 0, "blocks were to run out"
    assert (counters.swapped_out_blocks > 0) == (counters.swapped_in_blocks > 0) == (num_host_blocks > 0)
    ties = NearTies()
    for key, prompt in prompts.items():
        ties.check(model, prompt, engine.outputs[key])
    ties.report()


def test_graphs_and_sampler_survive_an_epoch(device: torch.device, tmp_path: Path) -> None:
    """Another epoch's sequences have the same wire ids and slots; a graph reads the same last tokens."""
    model = save_model(tmp_path, "Llama", num_hidden_layers=1)
    runner = runner_of(tmp_path, device)
    recorder = RememberingRecorder()
    runner.record_graphs(recorder, runner.graph_buckets)
    ties = NearTies()
    for seed in (1, 2):
        request = Request([11 * seed, 5, 3 + seed] * 4, 4)
        Driver(runner, seed=seed, preempt=0.0).run(request)
        ties.check(model, request.prompt, request.output)
        runner.reset()
    assert recorder.replayed
    ties.report()


def test_a_sample_without_memory_leaves_slots_as_they_were(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = DeviceSampler(device, 4, VOCAB_SIZE)
    sampling = SamplingParams(temperature=0.0, frequency_penalty=2.0, logprobs=3)
    tokens = np.array([7], np.uint32)
    for slot in (0, 2):
        sampler.admit(GeneratingSequence(slot + 1, slot, tokens, 1, 0, tokens, sampling, 0))
    logits = torch.randn((2, VOCAB_SIZE), generator=torch.Generator().manual_seed(1)).to(device)
    counts = sampler._counts.rows.clone()

    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "empty_log_probabilities", exhausted)
        with pytest.raises(torch.OutOfMemoryError):
            sampler.sample(logits, np.array([0, 2]), np.ones(2, np.int32))
    assert not sampler.last_tokens.any()
    assert torch.equal(sampler._counts.rows, counts)
    sample = sampler.sample(logits[:1], np.array([0]), np.ones(1, np.int32))
    assert sample.tokens.tolist() == logits[:1].argmax(-1).tolist() == sampler.last_tokens[:1].tolist()


def test_warming_up_leaves_a_new_epoch_and_runs_decodes_chunks_and_copies(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, "Llama", num_hidden_layers=1)
    runner = runner_of(tmp_path, device)
    steps: list[tuple[list[int], int]] = []
    run = DeviceForwardPass.run

    def noted(self: DeviceForwardPass, batch: Batch, tables: I32, last: Tensor, wanted: I64) -> Tensor:
        steps.append((np.diff(batch.query_starts).tolist(), len(batch.sampled_rows)))
        return run(self, batch, tables, last, wanted)

    monkeypatch.setattr(DeviceForwardPass, "run", noted)
    warm_up(runner)
    assert steps == [*([([17, 1], 2), ([1, 1], 2)] * 3), ([6, 6, 5, 5, 5, 5], 6), ([17], 0)]
    assert runner.num_sequences == 0
    steps.clear()
    run_largest_step(runner)
    assert steps == [([7, 7, 7, 7, 6, 6], 6)]


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="graphs are CUDA's")
def test_a_graph_does_what_its_launches_did(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    model = save_model(tmp_path, "Llama")
    ties = NearTies()
    runner = runner_of(tmp_path, device)
    warm_up(runner)
    runner.record_graphs(GraphRecorder(device), runner.graph_buckets)
    chooser = random.Random(7)
    requests = [Request([chooser.randrange(VOCAB_SIZE) for _ in range(length)], 20) for length in (5, 17, 2, 30, 1)]
    Driver(runner, seed=7).run(*requests)
    for request in requests:
        ties.check(model, request.prompt, request.output)
    ties.report()
