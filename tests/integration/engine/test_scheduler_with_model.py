"""The scheduler's core plans, the worker's runner computes, messages pass through the wire's own types, and every
greedy token is transformers' own: with chunks, mixed batches, two plans in flight, and so few blocks that sequences
must be preempted.
"""

from __future__ import annotations

import random
import time
from array import array
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from quire.inference.v1 import sampling_pb2
from quire.worker.v1 import worker_pb2
from services.scheduler.converters import plan_to_proto, result_from_proto
from services.scheduler.core.config import CoreConfig, PreemptionMode
from services.scheduler.core.request import Generate
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.worker_request import WorkerRequest
from services.worker.models.decoders.llama_families import FAMILIES
from services.worker.service.converters import plan_from_proto, result_to_proto
from services.worker.step.model_runner import LaunchedStep, ModelRunner
from tests.unit.worker.tiny_models import VOCAB_SIZE, NearTies, make_runner, save_model

SUPPORTED = [architecture.removesuffix("ForCausalLM") for architecture in FAMILIES]
OVERRIDES: dict[str, dict[str, Any]] = {
    "Mistral": {"sliding_window": 24},
    "Ministral": {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "SmolLM3": {"no_rope_layer_interval": 2},
    "Cwm": {"sliding_window": 24},
}


class Engine:
    """Core and runner with run-ahead, in one thread."""

    def __init__(
        self, runner: ModelRunner, run_ahead: int = 2, preemption_mode: PreemptionMode = PreemptionMode.AUTO
    ) -> None:
        limits = runner.limits
        self.runner = runner
        self.run_ahead = run_ahead
        self.core: Scheduler[WorkerRequest] = Scheduler(
            CoreConfig(
                num_blocks=limits.num_blocks,
                block_size=limits.block_size,
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_model_len=min(limits.max_model_len, limits.num_blocks * limits.block_size),
                num_host_blocks=limits.num_host_blocks,
                seconds_per_swapped_block=0.0,
                preemption_mode=preemption_mode,
            )
        )
        self.outputs: dict[int, list[int]] = {}
        self.num_copies = 0

    def submit(
        self,
        key: int,
        prompt: list[int],
        max_tokens: int,
        sampling: sampling_pb2.SamplingParams | None = None,
        group: int | None = None,
        choice_index: int = 0,
    ) -> None:
        self.outputs[key] = []
        sampling = sampling or sampling_pb2.SamplingParams(temperature=0)
        request = WorkerRequest(
            key, array("I", prompt), Generate(max_tokens), sampling=sampling, group=group, choice_index=choice_index
        )
        self.core.submit(request)

    def run(self) -> None:
        in_flight: deque[LaunchedStep] = deque()
        while True:
            while len(in_flight) < self.run_ahead and (plan := self.core.schedule()) is not None:
                self.num_copies += len(plan.moves.copies)
                wire = worker_pb2.StepPlan.FromString(plan_to_proto(plan, epoch=1).SerializeToString())
                in_flight.append(self.runner.launch(plan_from_proto(wire), received_at=time.monotonic()))
            self.core.check_integrity()
            if not in_flight:
                return
            result = result_to_proto(self.runner.collect(in_flight.popleft()))
            for sequence, _, token_id, _ in self.core.apply(result_from_proto(result)).tokens:
                assert isinstance(sequence.request.key, int)
                self.outputs[sequence.request.key].append(token_id)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("family", SUPPORTED)
def test_greedy_tokens_are_those_of_transformers(tmp_path: Path, family: str, block_size: int) -> None:
    model = save_model(tmp_path, family, seed=block_size, **OVERRIDES.get(family, {}))
    chance = random.Random(block_size)
    # Room for about two and a half of the longest sequences.
    runner = make_runner(
        tmp_path,
        block_size=block_size,
        num_blocks=256 // block_size,
        max_num_seqs=8,
        max_num_batched_tokens=chance.choice([16, 33, 64]),
    )
    engine = Engine(runner)
    prompts = {}
    for key in range(12):
        prompts[key] = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 60))]
        engine.submit(key, prompts[key], max_tokens=chance.randint(1, 40))
    engine.run()
    assert engine.core.counters.preemptions > 0, "blocks were to run out"
    assert engine.core.memory.pool.num_used == 0
    ties = NearTies()
    for key, prompt in prompts.items():
        ties.check(model, prompt, engine.outputs[key])
    ties.report()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("num_host_blocks", [0, 24])
@pytest.mark.parametrize("family", SUPPORTED)
def test_greedy_tokens_from_shared_copied_and_swapped_blocks_are_those_of_transformers(
    tmp_path: Path, family: str, num_host_blocks: int
) -> None:
    model = save_model(tmp_path, family, seed=3, **OVERRIDES.get(family, {}))
    chance = random.Random(3)
    runner = make_runner(
        tmp_path, block_size=8, num_blocks=16, max_num_seqs=8, max_num_batched_tokens=48,
        num_host_blocks=num_host_blocks,
    )  # fmt: skip
    engine = Engine(runner, preemption_mode=PreemptionMode.SWAP)
    common = [chance.randrange(3, VOCAB_SIZE) for _ in range(50)]
    prompts: dict[int, list[int]] = {}
    for key in range(24):
        # Some begin alike, some are choices of one request, some come back when the first are done.
        group = key // 3 if key % 6 < 3 else None
        own = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 20))]
        fresh = common[: chance.randint(0, 50)] + own
        prompts[key] = prompts[key - 1] if group is not None and key % 3 else fresh
        engine.submit(key, prompts[key], chance.randint(1, 30), group=group, choice_index=key % 3)
        if key == 11:
            engine.run()
    engine.run()
    counters = engine.core.counters
    assert counters.prefix_cache_hits > 300
    assert counters.preemptions > 0, "blocks were to run out"
    assert engine.num_copies > 0, "blocks were to be copied"
    assert (counters.swapped_out_blocks > 0) == (counters.swapped_in_blocks > 0) == (num_host_blocks > 0)
    ties = NearTies()
    for key, prompt in prompts.items():
        ties.check(model, prompt, engine.outputs[key])
    ties.report()


def test_seeded_choices_are_the_same_together_and_each_alone(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    runner = make_runner(tmp_path, block_size=8, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=24)
    if not runner.ops.batch_invariant:
        pytest.skip("the compiled kernels are not built")
    prompt = [random.Random(9).randrange(3, VOCAB_SIZE) for _ in range(45)]
    sampling = sampling_pb2.SamplingParams(temperature=1.0, repetition_penalty=1.2, seed=5)
    together = Engine(runner)
    for choice_index in range(4):
        together.submit(choice_index, prompt, 30, sampling, group=1, choice_index=choice_index)
    together.run()
    assert together.core.counters.prefix_cache_hits == 3 * 44
    assert together.num_copies == 3
    for choice_index in range(4):
        runner.reset()
        alone = Engine(runner, run_ahead=1)
        alone.submit(0, prompt, 30, sampling, choice_index=choice_index)
        alone.run()
        assert alone.outputs[0] == together.outputs[choice_index]
    assert len({tuple(output) for output in together.outputs.values()}) == 4


def test_seeded_samples_are_the_same_alone_and_in_a_crowd_that_preempts(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    runner = make_runner(tmp_path, block_size=8, num_blocks=24, max_num_seqs=8, max_num_batched_tokens=24)
    if not runner.ops.batch_invariant:
        pytest.skip("the compiled kernels are not built")
    chance = random.Random(5)
    prompts = {key: [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 50))] for key in range(10)}
    sampling = sampling_pb2.SamplingParams(
        temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.1, seed=77,
    )  # fmt: skip
    crowd = Engine(runner)
    for key, prompt in prompts.items():
        crowd.submit(key, prompt, 40, sampling)
    crowd.run()
    assert crowd.core.counters.preemptions > 0
    for key, prompt in prompts.items():
        runner.reset()
        alone = Engine(runner, run_ahead=1)
        alone.submit(key, prompt, 40, sampling)
        alone.run()
        assert alone.outputs[key] == crowd.outputs[key]
