"""Sequences that are pooled share steps with those that generate: through the real core, the wire's own types and the
real runner, with chunks, run-ahead, prefix hits and preemption, every vector is transformers', and every greedy token.
"""

from __future__ import annotations

import random
import time
from array import array
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import transformers

from quire.inference.v1 import pooling_pb2, sampling_pb2
from quire.worker.v1 import worker_pb2
from services.scheduler.converters import plan_to_proto, result_from_proto
from services.scheduler.core.config import CoreConfig, PreemptionMode
from services.scheduler.core.request import Generate, Pool
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.worker_request import WorkerRequest
from services.worker.pages.kv_cache import allocate_pages
from services.worker.plan.batch import Limits
from services.worker.plan.step_plan import F32
from services.worker.pooling.config import PoolingConfig, PoolingKind
from services.worker.service.converters import plan_from_proto, result_to_proto
from services.worker.startup.create_ops import create_ops
from services.worker.startup.device import compose_device
from services.worker.startup.runners import create_decoder_runner
from services.worker.step.model_runner import LaunchedStep, ModelRunner
from tests.unit.worker.tiny_encoders import hidden_states, make_encoder_runner, normalized, save_encoder
from tests.unit.worker.tiny_models import VOCAB_SIZE, NearTies, make_decoder, save_model


class Engine:
    """Core and runner with two plans in flight, in one thread."""

    def __init__(self, runner: ModelRunner, kind: PoolingKind) -> None:
        limits = runner.limits
        self.runner = runner
        self.kind = kind
        self.core: Scheduler[WorkerRequest] = Scheduler(
            CoreConfig(
                num_blocks=limits.num_blocks,
                block_size=limits.block_size,
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_model_len=min(limits.max_model_len, limits.num_blocks * limits.block_size),
                num_host_blocks=limits.num_host_blocks,
                seconds_per_swapped_block=0.0,
                preemption_mode=PreemptionMode.SWAP,
                chunked_prefill=runner.limits.has_kv_cache,
            )
        )
        self.outputs: dict[int, list[int]] = {}
        self.vectors: dict[int, F32] = {}
        self.num_mixed_steps = 0

    def generate(self, key: int, prompt: list[int], max_tokens: int) -> None:
        self.outputs[key] = []
        sampling = sampling_pb2.SamplingParams(temperature=0)
        self.core.submit(WorkerRequest(key, array("I", prompt), Generate(max_tokens), sampling=sampling))

    def embed(self, key: int, prompt: list[int]) -> None:
        is_last = self.kind is PoolingKind.LAST and self.runner.limits.has_kv_cache
        work = Pool(needs_all_tokens=not is_last)
        self.core.submit(WorkerRequest(key, array("I", prompt), work, pooling=pooling_pb2.PoolingParams()))

    def run(self) -> None:
        in_flight: deque[LaunchedStep] = deque()
        while True:
            while len(in_flight) < 2 and (plan := self.core.schedule()) is not None:
                wire = worker_pb2.StepPlan.FromString(plan_to_proto(plan, epoch=1).SerializeToString())
                in_flight.append(self.runner.launch(plan_from_proto(wire), received_at=time.monotonic()))
                batch = in_flight[-1].batch
                self.num_mixed_steps += 0 < len(batch.pooled_rows) < len(batch.slots)
            self.core.check_integrity()
            if not in_flight:
                return
            result = result_to_proto(self.runner.collect(in_flight.popleft()))
            outcome = self.core.apply(result_from_proto(result))
            for sequence, _, token_id, _ in outcome.tokens:
                assert isinstance(sequence.request.key, int)
                self.outputs[sequence.request.key].append(token_id)
            for end in outcome.finished:
                assert end.failure is None
                if end.embedding is not None:
                    assert isinstance(end.sequence.request.key, int)
                    self.vectors[end.sequence.request.key] = np.frombuffer(end.embedding, np.float32)


def make_runner(directory: Path, kind: PoolingKind, num_blocks: int = 24, num_host_blocks: int = 0) -> ModelRunner:
    import torch

    ops = create_ops(torch.device("cpu"), torch.float32)
    decoder = make_decoder(directory, ops)
    config = decoder.config
    limits = Limits(num_blocks, 8, 8, 24, config.max_model_len, config.vocab_size, num_host_blocks)
    with torch.inference_mode():
        pages = allocate_pages(config, num_blocks, 8, ops.device, ops.dtype)
        return create_decoder_runner(decoder, compose_device(ops), pages, limits, pooling=PoolingConfig(kind))


def expected_vector(model: transformers.PreTrainedModel, prompt: list[int], kind: PoolingKind) -> F32:
    hidden = hidden_states(model, prompt)
    return normalized(hidden.mean(0) if kind is PoolingKind.MEAN else hidden[-1])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("num_host_blocks", [0, 24])
@pytest.mark.parametrize("kind", [PoolingKind.LAST, PoolingKind.MEAN])
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_vectors_and_tokens_that_share_steps_are_those_of_transformers(
    tmp_path: Path, family: str, kind: PoolingKind, num_host_blocks: int
) -> None:
    model = save_model(tmp_path, family, seed=4)
    chance = random.Random(4)
    engine = Engine(make_runner(tmp_path, kind, num_host_blocks=num_host_blocks), kind)
    common = [chance.randrange(3, VOCAB_SIZE) for _ in range(40)]
    prompts = {}
    for key in range(30):
        own = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 60))]
        prompts[key] = common[: chance.randint(0, 40)] + own
        if key % 2:
            engine.embed(key, prompts[key])
        else:
            engine.generate(key, prompts[key], chance.randint(5, 40))
        if key == 14:
            engine.run()
    engine.run()
    counters = engine.core.counters
    assert counters.preemptions > 0, "blocks were to run out"
    assert counters.prefix_cache_hits > 0
    assert engine.num_mixed_steps > 10
    assert engine.core.memory.pool.num_used == 0
    ties = NearTies()
    for key, prompt in prompts.items():
        if key % 2:
            np.testing.assert_allclose(engine.vectors[key], expected_vector(model, prompt, kind), atol=1e-5)
        else:
            ties.check(model, prompt, engine.outputs[key])
    ties.report()


@pytest.mark.parametrize("kind", [PoolingKind.LAST, PoolingKind.MEAN])
def test_a_vector_has_the_same_bits_alone_and_in_a_crowd_in_chunks(tmp_path: Path, kind: PoolingKind) -> None:
    save_model(tmp_path, "Llama")
    runner = make_runner(tmp_path, kind)
    if not runner.ops.batch_invariant:
        pytest.skip("the compiled kernels are not built")
    chance = random.Random(6)
    prompts = [[chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 70))] for _ in range(12)]
    crowd = Engine(runner, kind)
    for key, prompt in enumerate(prompts):
        crowd.generate(100 + key, prompt[:5], 20)
        crowd.embed(key, prompt)
    crowd.run()
    for key, prompt in enumerate(prompts):
        runner.reset()
        alone = Engine(runner, kind)
        alone.embed(key, prompt)
        alone.run()
        assert np.array_equal(alone.vectors[key], crowd.vectors[key])


def test_a_prefix_is_taken_for_the_last_token_and_never_for_a_mean(tmp_path: Path) -> None:
    model = save_model(tmp_path, "Llama")
    prompt = [random.Random(2).randrange(3, VOCAB_SIZE) for _ in range(33)]
    for kind, num_hits in ((PoolingKind.LAST, 32), (PoolingKind.MEAN, 0)):
        engine = Engine(make_runner(tmp_path, kind), kind)
        engine.generate(0, prompt, 1)
        engine.run()
        engine.embed(1, prompt)
        engine.run()
        assert engine.core.counters.prefix_cache_hits == num_hits
        np.testing.assert_allclose(engine.vectors[1], expected_vector(model, prompt, kind), atol=1e-5)


def test_a_lost_worker_s_sequences_are_pooled_anew(tmp_path: Path) -> None:
    model = save_model(tmp_path, "Llama")
    prompt = [random.Random(2).randrange(3, VOCAB_SIZE) for _ in range(60)]
    engine = Engine(make_runner(tmp_path, PoolingKind.MEAN), PoolingKind.MEAN)
    engine.embed(0, prompt)
    plan = engine.core.schedule()
    assert plan is not None
    wire = worker_pb2.StepPlan.FromString(plan_to_proto(plan, epoch=1).SerializeToString())
    engine.runner.launch(plan_from_proto(wire), received_at=0.0)
    assert not engine.core.reset()
    engine.runner.reset()
    engine.run()
    np.testing.assert_allclose(engine.vectors[0], expected_vector(model, prompt, PoolingKind.MEAN), atol=1e-5)


def test_an_encoder_s_sequences_are_planned_whole_and_within_the_step_s_tokens(tmp_path: Path) -> None:
    model = save_encoder(tmp_path)
    runner = make_encoder_runner(tmp_path, max_num_batched_tokens=130, pooling_type="mean")
    chance = random.Random(8)
    prompts = [[chance.randrange(4, VOCAB_SIZE) for _ in range(chance.randint(1, 80))] for _ in range(20)]
    engine = Engine(runner, PoolingKind.MEAN)
    for key, prompt in enumerate(prompts):
        engine.embed(key, prompt)
    engine.run()
    least = sum(map(len, prompts)) / 130
    assert least <= engine.core.counters.steps - 1 < 20, "several sequences in a step, and a last one to release them"
    for key, prompt in enumerate(prompts):
        np.testing.assert_allclose(engine.vectors[key], normalized(hidden_states(model, prompt).mean(0)), atol=1e-5)
