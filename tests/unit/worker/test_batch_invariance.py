"""On a CPU in float32 a sequence's bits do not depend on what it shares a batch with, on chunks, or on preemptions."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from services.worker.models.decoder import Decoder
from services.worker.ops.interface import AttentionBatch, KVPages
from services.worker.pages.kv_cache import allocate_pages
from services.worker.plan.sampling_params import SamplingParams
from services.worker.startup.create_ops import create_ops
from services.worker.step.model_runner import ModelRunner
from tests.unit.worker.driver import GREEDY, Driver, Request
from tests.unit.worker.tiny_models import VOCAB_SIZE, make_decoder, make_runner, save_model

EVERYTHING = SamplingParams(
    temperature=0.9,
    top_k=40,
    top_p=0.93,
    min_p=0.01,
    repetition_penalty=1.2,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    logit_bias=((7, 1.5), (11, -2.0)),
    seed=0xFEDCBA9876543210,
    logprobs=5,
)
SAMPLINGS = (
    SamplingParams(temperature=0.0, logprobs=20),
    SamplingParams(temperature=1.0, seed=1, logprobs=0),
    SamplingParams(temperature=0.7, seed=2, top_k=5, logprobs=3),
    SamplingParams(temperature=1.3, seed=3, top_p=0.8, logprobs=1),
    SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.5, logprobs=2),
    SamplingParams(temperature=1.0, seed=4, min_p=0.2, logprobs=2),
    EVERYTHING,
)
NUM_OUTPUTS = 14

pytestmark = pytest.mark.usefixtures("batch_invariant")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    save_model(directory, "Qwen3", use_sliding_window=True, sliding_window=24, max_window_layers=2)
    return directory


@pytest.fixture(scope="module")
def runner(directory: Path) -> ModelRunner:
    return make_runner(directory, num_blocks=256, max_num_seqs=32)


def subjects() -> list[Request]:
    chooser = random.Random(5)
    return [
        Request([chooser.randrange(VOCAB_SIZE) for _ in range(length)], NUM_OUTPUTS, sampling, choice_index=length % 3)
        for length, sampling in zip((1, 5, 16, 33, 47, 60, 71), SAMPLINGS, strict=True)
    ]


def crowd(seed: int) -> list[Request]:
    chooser = random.Random(seed)
    return [
        Request(
            [chooser.randrange(VOCAB_SIZE) for _ in range(chooser.randint(1, 80))],
            chooser.randint(1, 20),
            chooser.choice((GREEDY, *SAMPLINGS)),
        )
        for _ in range(30)
    ]


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> list[Request]:
    """Each by itself, its prompt in one piece, one step in flight at a time."""
    runner.reset()
    driver = Driver(runner, seed=0, max_chunk=256, idle=0.0, depth=1)
    return [driver.run(request)[0] for request in subjects()]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize(("seed", "max_chunk"), [(1, 1), (2, 7), (3, 64)])
def test_tokens_and_logprobs_are_the_same_bits_in_any_company(
    runner: ModelRunner, alone: list[Request], num_threads: int, seed: int, max_chunk: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    runner.reset()
    driver = Driver(runner, seed=seed, max_chunk=max_chunk, max_running=24, preempt=0.1)
    mixed, others = subjects(), crowd(seed)
    driver.run(*mixed, *others)
    torch.set_num_threads(before)
    assert any(request.num_preemptions for request in mixed)
    for request, expected in zip(mixed, alone, strict=True):
        assert request.output == expected.output
        assert request.logprobs == expected.logprobs  # floats, compared bit for bit


@dataclass(slots=True)
class Text:
    """What a decoder computes piece by piece, over blocks of its own."""

    token_ids: Tensor  # int64 [length]
    block_ids: Tensor  # int32 [num_blocks]
    num_computed: int = 0
    logits: list[Tensor] = field(default_factory=list)  # [num_tokens, vocab] of each piece

    @property
    def num_left(self) -> int:
        return len(self.token_ids) - self.num_computed


def texts(chooser: random.Random) -> list[Text]:
    """The same tokens every time, in blocks that the chooser deals out."""
    lengths = (1, 5, 16, 33, 47, 60, 71, 80, 2, 64)
    tokens = torch.Generator().manual_seed(8)
    blocks = torch.tensor(chooser.sample(range(50), 50), dtype=torch.int32).view(10, 5)
    return [
        Text(torch.randint(VOCAB_SIZE, (length,), generator=tokens), own)
        for length, own in zip(lengths, blocks, strict=True)
    ]


def compute(decoder: Decoder, pages: Sequence[KVPages], rows: Sequence[tuple[Text, int]]) -> None:
    """One step over the next tokens of each text, as many as its row says."""
    ends = list(itertools.accumulate(count for _, count in rows))
    batch = AttentionBatch(
        positions=torch.cat([torch.arange(text.num_computed, text.num_computed + count) for text, count in rows]).int(),
        query_starts=torch.tensor([0, *ends], dtype=torch.int32),
        block_tables=torch.stack([text.block_ids for text, _ in rows]),
    )
    token_ids = torch.cat([text.token_ids[text.num_computed : text.num_computed + count] for text, count in rows])
    with torch.inference_mode():
        logits = decoder.logits(decoder.hidden_states(token_ids, batch, pages, torch.arange(len(token_ids))))
    for (text, count), end in zip(rows, ends, strict=True):
        text.num_computed += count
        text.logits.append(logits[end - count : end])


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("max_chunk", [1, 7, 64])
def test_logits_are_the_same_bits_alone_or_in_a_crowd_and_whole_or_in_chunks(
    directory: Path, max_chunk: int, num_threads: int
) -> None:
    decoder = make_decoder(directory, create_ops(torch.device("cpu"), torch.float32))
    pages = allocate_pages(decoder.config, 50, 16, torch.device("cpu"), torch.float32)
    chooser = random.Random(max_chunk)
    alone, crowd = texts(chooser), texts(chooser)
    for text in alone:
        compute(decoder, pages, [(text, text.num_left)])
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    while unfinished := [text for text in crowd if text.num_left]:
        chosen = chooser.sample(unfinished, chooser.randint(1, len(unfinished)))
        compute(decoder, pages, [(text, chooser.randint(1, min(text.num_left, max_chunk))) for text in chosen])
    torch.set_num_threads(before)
    for text, expected in zip(crowd, alone, strict=True):
        assert torch.equal(torch.cat(text.logits), torch.cat(expected.logits))


def test_a_sequence_goes_on_the_same_over_pages_that_another_computed(
    runner: ModelRunner, alone: list[Request]
) -> None:
    """What the prefix cache does: whole blocks of a longer sequence serve a second one that starts alike."""
    runner.reset()
    block_size = runner.limits.block_size
    for subject, expected in zip(subjects(), alone, strict=True):
        driver = Driver(runner, seed=9, idle=0.0)
        cached = (len(subject.prompt) - 1) // block_size
        subject.prefix = driver.compute(subject.prompt[: cached * block_size])
        driver.run(subject)
        assert subject.output == expected.output
        assert subject.logprobs == expected.logprobs


def test_equal_seeds_draw_equal_tokens_and_choices_differ(runner: ModelRunner) -> None:
    runner.reset()
    sampling = SamplingParams(temperature=1.0, seed=77)
    same = [Request([5, 6, 7], 16, sampling, choice_index=index) for index in (0, 0, 1, 2)]
    Driver(runner, seed=4).run(*same)
    outputs = [request.output for request in same]
    assert outputs[0] == outputs[1]
    assert len({tuple(output) for output in outputs}) == 3
    other_seed = Request([5, 6, 7], 16, SamplingParams(temperature=1.0, seed=77 << 32))
    Driver(runner, seed=4).run(other_seed)
    assert other_seed.output != outputs[0]


def test_logprobs_are_those_of_the_raw_distribution(runner: ModelRunner, alone: list[Request]) -> None:
    """The penalised, heated and cut one reports the same probabilities as the plain one would for the same text."""
    request = alone[-1]
    for index, (logprob, top) in enumerate(request.logprobs):
        replay = Request(request.prompt + request.output[:index], 1, SamplingParams(temperature=0.0, logprobs=20))
        runner.reset()
        Driver(runner, seed=1).run(replay)
        _, raw = replay.logprobs[0]
        assert top == raw[:5]
        assert dict(raw).get(request.output[index], logprob) == logprob
        assert np.all(np.diff([value for _, value in raw]) <= 0)
