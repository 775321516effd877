"""Log probabilities of prompts and of what follows are transformers', however the prompt is computed: in chunks, beside
others, from swapped blocks, after preemptions, and where others have computed it already.
"""

from __future__ import annotations

import json
import math
import os
import random
import struct
import time
from array import array
from collections import deque
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from quire.inference.v1 import sampling_pb2
from quire.worker.v1 import worker_pb2
from services.scheduler.converters import (
    PromptLogprobColumns,
    TokenLogprob,
    logprobs_from_proto,
    plan_to_proto,
    result_from_proto,
)
from services.scheduler.core.config import CoreConfig, PreemptionMode
from services.scheduler.core.request import Generate
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.worker_request import WorkerRequest
from services.worker.sampling import prompt_logprobs
from services.worker.service.converters import plan_from_proto, result_to_proto
from services.worker.step.model_runner import LaunchedStep, ModelRunner
from tests.unit.worker.tiny_models import VOCAB_SIZE, make_runner, reference_logits, save_model

SHARED = Path(os.environ.get("QUIRE_SHARED", Path(__file__).parents[4] / "shared"))
STORIES = SHARED / "models" / "stories260k"
BUNDLED = Path(__file__).parents[3] / "quire" / "models" / "quire-chat"
CLOSE = 1e-4

pytestmark = pytest.mark.usefixtures("one_thread")


class Engine:
    """Core and runner with two plans in flight; keeps the log probabilities that come back."""

    def __init__(self, runner: ModelRunner, preemption_mode: PreemptionMode = PreemptionMode.AUTO) -> None:
        limits = runner.limits
        self.runner = runner
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
        self.output_logprobs: dict[int, list[float]] = {}
        # By sequence: the position and the entries of each message.
        self.messages: dict[int, list[tuple[int, PromptLogprobColumns]]] = {}
        self.in_flight: deque[LaunchedStep] = deque()

    def submit(
        self, key: int, prompt: list[int], max_tokens: int, top: int = 3, received: int = 0, group: object = None,
        choice_index: int = 0,
    ) -> None:  # fmt: skip
        self.outputs[key], self.output_logprobs[key], self.messages[key] = [], [], []
        sampling = sampling_pb2.SamplingParams(temperature=0, logprobs=0, prompt_logprobs=top)
        wanted = received if choice_index == 0 else None
        self.core.submit(
            WorkerRequest(
                key, array("I", prompt), Generate(max_tokens), sampling=sampling, num_prompt_logprobs=wanted,
                group=group, choice_index=choice_index,
            )
        )  # fmt: skip

    def run(self) -> None:
        while self.step():
            pass

    def step(self) -> bool:
        while len(self.in_flight) < 2 and (plan := self.core.schedule()) is not None:
            wire = worker_pb2.StepPlan.FromString(plan_to_proto(plan, epoch=1).SerializeToString())
            self.in_flight.append(self.runner.launch(plan_from_proto(wire), received_at=time.monotonic()))
        self.core.check_integrity()
        if not self.in_flight:
            return False
        message = result_to_proto(self.runner.collect(self.in_flight.popleft()))
        assert not message.errors
        logprobs = logprobs_from_proto(message.logprobs)
        result = result_from_proto(message)
        outcome = self.core.apply(result)
        for sequence, chunk in outcome.prompt_logprobs:
            assert isinstance(sequence.request.key, int)
            entries = result.prompt_logprobs[chunk]
            self.messages[sequence.request.key].append((entries.first_position, entries))
        for sequence, _, token_id, index in outcome.tokens:
            assert isinstance(sequence.request.key, int)
            self.outputs[sequence.request.key].append(token_id)
            self.output_logprobs[sequence.request.key].append(_floats(_entry(logprobs, index))[0])
        return True

    def prompt_logprobs(self, key: int, first: int = 1) -> list[float]:
        """Of every message, which must join without gap or overlap."""
        values: list[float] = []
        for position, entries in self.messages[key]:
            assert position == first + len(values)
            values += _floats(entries.logprobs)
        return values


def _entry(logprobs: dict[int, TokenLogprob], index: int) -> bytes:
    return logprobs[index].logprob


def _floats(column: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(column) // 4}f", column))


def expected(model: transformers.PreTrainedModel, token_ids: list[int]) -> Tensor:
    """float32 [len - 1]: of each token but the first."""
    distribution = reference_logits(model, token_ids).float().log_softmax(-1)
    return distribution[:-1].gather(1, torch.tensor(token_ids[1:])[:, None]).squeeze(1)


def check(engine: Engine, model: transformers.PreTrainedModel, key: int, prompt: list[int]) -> None:
    wanted = expected(model, prompt + engine.outputs[key])
    ours = torch.tensor(engine.prompt_logprobs(key) + engine.output_logprobs[key])
    assert ours.shape == wanted.shape
    assert (ours - wanted).abs().max() < CLOSE


@pytest.mark.parametrize("num_host_blocks", [0, 24])
def test_prompts_in_chunks_preempted_swapped_and_alike(tmp_path: Path, num_host_blocks: int) -> None:
    model = save_model(tmp_path, "Llama", seed=4)
    chance = random.Random(4)
    runner = make_runner(
        tmp_path, block_size=8, num_blocks=16, max_num_seqs=8, max_num_batched_tokens=24,
        num_host_blocks=num_host_blocks,
    )  # fmt: skip
    engine = Engine(runner, PreemptionMode.SWAP)
    common = [chance.randrange(3, VOCAB_SIZE) for _ in range(50)]
    prompts = {}
    for key in range(16):
        prompts[key] = common[: chance.randint(0, 50)] + [
            chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 20))
        ]
        engine.submit(key, prompts[key], chance.randint(1, 30))
    engine.run()
    assert engine.core.counters.preemptions > 0, "blocks were to run out"
    assert max(len(messages) for messages in engine.messages.values()) > 2, "prompts were to be computed in chunks"
    for key, prompt in prompts.items():
        check(engine, model, key, prompt)


def test_a_prompt_that_others_have_computed_skips_nothing_and_its_other_choices_share_it(tmp_path: Path) -> None:
    model = save_model(tmp_path, "Llama", seed=5)
    runner = make_runner(tmp_path, block_size=8, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=20)
    engine = Engine(runner)
    prompt = [random.Random(5).randrange(3, VOCAB_SIZE) for _ in range(45)]
    engine.submit(0, prompt, 1, choice_index=1)
    engine.run()
    engine.submit(1, prompt, 4, group="b")
    engine.submit(2, prompt, 4, group="b", choice_index=1)
    engine.run()
    check(engine, model, 1, prompt)
    assert engine.messages[0] == engine.messages[2] == []
    assert engine.outputs[1] == engine.outputs[2]
    assert engine.core.counters.prefix_cache_hits == 40, "the other choice was to find the prompt"


def test_a_resubmission_goes_on_where_the_entries_received_end(tmp_path: Path) -> None:
    model = save_model(tmp_path, "Llama", seed=6)
    runner = make_runner(tmp_path, block_size=8, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=64)
    engine = Engine(runner)
    prompt = [random.Random(6).randrange(3, VOCAB_SIZE) for _ in range(45)]
    engine.submit(0, prompt, 1)
    engine.run()
    # What was found of the prompt ends before the first entry that is missing.
    engine.submit(1, prompt, 1, received=29)
    engine.run()
    assert engine.core.counters.prefix_cache_hits == 24
    assert torch.allclose(torch.tensor(engine.prompt_logprobs(1, first=30)), expected(model, prompt)[29:], atol=CLOSE)
    engine.submit(2, prompt, 1, received=44)
    engine.run()
    assert engine.messages[2] == []


def test_a_lost_worker_costs_no_entry_and_brings_none_twice(tmp_path: Path) -> None:
    model = save_model(tmp_path, "Llama", seed=7)
    runner = make_runner(tmp_path, block_size=8, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=16)
    engine = Engine(runner)
    prompt = [random.Random(7).randrange(3, VOCAB_SIZE) for _ in range(60)]
    engine.submit(0, prompt, 5)
    for _ in range(2):
        engine.step()
        engine.in_flight.clear()
        engine.core.reset()
        runner.reset()
    engine.run()
    check(engine, model, 0, prompt)


def test_another_group_brings_the_entries_that_the_lost_one_did_not(tmp_path: Path) -> None:
    model = save_model(tmp_path, "Llama", seed=9)
    lost, other = (
        Engine(make_runner(tmp_path, block_size=size, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=16))
        for size in (8, 16)
    )
    prompt = [random.Random(9).randrange(3, VOCAB_SIZE) for _ in range(60)]
    for choice_index in range(2):
        lost.submit(choice_index, prompt, 5, group="a", choice_index=choice_index)
    for _ in range(2):
        lost.step()
    assert 0 < len(lost.prompt_logprobs(0)) < 59, "it was to be lost in the middle of the prompt"
    lost.core.reset()
    other.messages, other.outputs, other.output_logprobs = lost.messages, lost.outputs, lost.output_logprobs
    for sequence in lost.core.drain():
        other.core.adopt(sequence)
    other.run()
    check(other, model, 0, prompt)
    assert other.messages[1] == []
    assert other.outputs[1] == other.outputs[0]


def test_likeliest_tokens_and_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_logprobs, "_SLICE_VALUES", 7 * VOCAB_SIZE)
    model = save_model(tmp_path, "Llama", seed=8)
    runner = make_runner(tmp_path, block_size=8, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=64)
    engine = Engine(runner)
    prompt = [random.Random(8).randrange(3, VOCAB_SIZE) for _ in range(30)]
    engine.submit(0, prompt, 1, top=5)
    engine.submit(1, prompt, 1, top=0)
    engine.run()
    ((_, entries),), ((_, bare),) = engine.messages[0], engine.messages[1]
    distribution = reference_logits(model, prompt).float().log_softmax(-1)[:-1]
    top = distribution.topk(5)
    ids = torch.tensor(struct.unpack(f"<{29 * 5}I", entries.top_token_ids)).view(29, 5)
    assert torch.allclose(torch.tensor(_floats(entries.top_logprobs)).view(29, 5), top.values, atol=CLOSE)
    assert (ids == top.indices).float().mean() > 0.99
    own = distribution.gather(1, torch.tensor(prompt[1:])[:, None])
    ranks = torch.tensor(struct.unpack("<29I", entries.ranks))
    assert ((distribution > own).sum(-1) + 1 - ranks).abs().max() <= 1
    assert bare.top_token_ids == b""
    assert bare.logprobs == entries.logprobs
    assert bare.ranks == entries.ranks


@pytest.mark.parametrize(
    "path",
    [
        BUNDLED,
        pytest.param(STORIES, marks=pytest.mark.skipif(not STORIES.is_dir(), reason="the trained model is not there")),
    ],
    ids=["bundled", "stories"],
)
def test_perplexity_of_trained_models(path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    if path == STORIES:
        prompt = json.loads((STORIES / "golden.json").read_text())["prompt_token_ids"] + list(range(300, 400))
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        prompt = tokenizer("Once upon a time there was a fox. What is 7 plus 5? It is 12, said the fox.").input_ids
    engine = Engine(make_runner(path, block_size=16, num_blocks=64, max_num_batched_tokens=32))
    engine.submit(0, prompt, 20)
    engine.run()
    check(engine, model, 0, prompt)
    ours = math.exp(-sum(engine.prompt_logprobs(0)) / (len(prompt) - 1))
    assert ours == pytest.approx(math.exp(-expected(model, prompt).mean().item()), rel=1e-4)
