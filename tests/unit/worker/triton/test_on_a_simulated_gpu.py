"""The worker's whole start, and its steps, on a device with the rules of a GPU (`tests/simulated_gpu`): nothing
waits, nothing mixes host and device, graphs repeat launches alone, and serving compiles nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from services.scheduler.core.config import PreemptionMode
from services.worker.ops.triton.ops import TritonOps
from services.worker.pages import host_memory
from services.worker.plan.sampling_params import SamplingParams
from services.worker.pooling.config import PoolingKind
from services.worker.sampling.device_sampler import DeviceSampler
from services.worker.startup import device_memory as memory
from services.worker.step.generation import DecoderGeneration
from services.worker.step.model_runner import OUT_OF_MEMORY
from tests.integration.engine.mixed import MixedEngine
from tests.integration.engine.test_scheduler_with_model import Engine
from tests.simulated_gpu import SimulatedGPU
from tests.unit.worker.driver import GREEDY, Driver, Request
from tests.unit.worker.given_embeddings import EmbeddingReference
from tests.unit.worker.quantization import stored
from tests.unit.worker.tiny_encoders import embed_together, embeddings, hidden_states, normalized, save_encoder
from tests.unit.worker.tiny_models import VOCAB_SIZE, save_model
from tests.unit.worker.triton.conftest import HAS_GPU
from tests.unit.worker.triton.quantized import WEIGHTS_ALONE
from tests.unit.worker.triton.simulated_worker import check, prompts, serving, write_tokenizer

pytestmark = pytest.mark.skipif(HAS_GPU, reason="there is a real one")
EVERYTHING = SamplingParams(
    temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.1, seed=3,
    logit_bias=((5, 1.0), (7, -1.0)), logprobs=3,
)  # fmt: skip
NAMED = replace(EVERYTHING, logprobs=0, logprob_token_ids=(3, 9, 4))
Make = Callable[[Path], transformers.PreTrainedModel]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a checkpoint, with a tokenizer."""
    write_tokenizer(tmp_path)
    return tmp_path


def test_chunks_decodes_and_every_way_to_sample_wait_for_nothing_and_compile_nothing(directory: Path) -> None:
    """Prompts of up to 40 tokens in steps of 20, and one of 16, a number that Triton has a form of its own for; in a
    cache of what memory there is: serving takes no more than was measured."""
    model = save_model(directory, "Llama", num_hidden_layers=1)
    requests = [Request(prompt, 4) for prompt in prompts(40, 9, 1)]
    sampled = [Request(prompt, 3, way) for prompt in prompts(12) for way in (EVERYTHING, SamplingParams())]
    with serving(directory, "--gpu-memory-utilization", "0.05", num_blocks=None, max_num_tokens=20) as (gpu, runner):
        cache, gpu.peak = gpu.allocated, 0
        engine = Engine(runner)
        engine.submit(0, prompts(16)[0], 2)
        engine.run()
        runner.reset()
        Driver(runner, seed=3, max_chunk=24, preempt=0.1).run(*requests, *sampled)
    assert 0.9 * 0.05 * gpu.total_bytes < cache < gpu.peak < 0.05 * gpu.total_bytes
    assert all(request.error is None and len(request.output) == 3 for request in sampled)
    assert sum(graph.num_replays > 0 for graph in gpu.graphs) > 1
    check(model, requests)


@pytest.mark.parametrize(
    ("kind", "argument"),
    [
        (PoolingKind.LAST, "--enforce-eager"),
        pytest.param(PoolingKind.MEAN, "--batch-invariant", marks=pytest.mark.thorough),
    ],
)
def test_masks_prompt_logprobs_and_pooled_sequences_wait_for_nothing(
    directory: Path, kind: PoolingKind, argument: str
) -> None:
    model = save_model(directory, "Llama", num_hidden_layers=1, seed=3)
    with serving(directory, "--pooling-type", kind.name.lower(), argument) as (gpu, runner):
        engine = MixedEngine(runner, kind)
        engine.submit_some(6, seed=8, longest_prompt=20, longest_output=4)
        engine.run()
    engine.check(model)
    assert bool(gpu.graphs) == (argument != "--enforce-eager")


@pytest.mark.thorough
def test_given_embeddings_wait_for_nothing(directory: Path) -> None:
    """A step with one token per sequence is a graph's, unless an embedding is given."""
    reference = EmbeddingReference(save_model(directory, "Llama", num_hidden_layers=1))
    requests = [
        reference.request(1, 3, given=[0]),
        reference.request(30, 3, given=range(4, 22)),
        reference.request(9, 4),
    ]
    with serving(directory) as (gpu, runner):
        Driver(runner, seed=4, max_chunk=6).run(*requests)
    for request in requests:
        reference.check(request)
    assert sum(graph.num_replays > 0 for graph in gpu.graphs) > 0


def test_swaps_and_copies_wait_for_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In swap space of the default size, which is made small for such a model."""
    monkeypatch.setattr(host_memory, "DEFAULT_GPU_BYTES", 2**19)
    model = save_model(directory, "Llama", num_hidden_layers=1)
    chance, common = random.Random(3), prompts(28)[0]
    with serving(directory, swap_space=None, num_blocks=8) as (_, runner):
        engine = Engine(runner, preemption_mode=PreemptionMode.SWAP)
        asked: dict[int, list[int]] = {}
        for key in range(8):
            own = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 6))]
            asked[key] = asked[key - 1] if key % 2 else common[: chance.randint(0, 28)] + own
            engine.submit(key, asked[key], chance.randint(4, 12), group=key // 2, choice_index=key % 2)
        engine.run()
    assert engine.num_copies > 0, "blocks were to be copied"
    assert engine.core.counters.swapped_in_blocks > 0, "blocks were to run out"
    check(model, [Request(prompt, 0, output=engine.outputs[key]) for key, prompt in asked.items()])


def awq(directory: Path) -> transformers.PreTrainedModel:
    settings = {"quant_method": "awq", "bits": 4, "group_size": stored.GROUP, "version": "gemm", "zero_point": True}
    return stored.quantize_checkpoint(directory, "Llama", settings, stored.awq, num_hidden_layers=1)


def gptq(directory: Path) -> transformers.PreTrainedModel:
    """Each projection has its own order of inputs."""
    settings = {"quant_method": "gptq", "bits": 4, "group_size": stored.GROUP, "desc_act": True, "sym": False}
    return stored.quantize_checkpoint(directory, "Llama", settings, stored.gptq("apart"), num_hidden_layers=1)


def llama(directory: Path) -> transformers.PreTrainedModel:
    return save_model(directory, "Llama", num_hidden_layers=1)


def qwen3(directory: Path) -> transformers.PreTrainedModel:
    """Norms of q and k, and a layer with a window."""
    window = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    return save_model(directory, "Qwen3", num_hidden_layers=2, **window)


@pytest.mark.parametrize(
    ("make", "arguments", "options", "tolerance"),
    [
        pytest.param(awq, (), {}, 1e-4, marks=pytest.mark.thorough),
        pytest.param(gptq, (), {"dtype": "float16"}, 0.05, marks=pytest.mark.thorough),
        (qwen3, (), {}, 1e-4),
        pytest.param(
            *(llama, ("--load-format", "dummy", "--quantization", "int8"), {}, np.inf), marks=pytest.mark.thorough
        ),
    ],
)
def test_every_form_of_weights_and_pages_is_served_alike(
    directory: Path, make: Make, arguments: tuple[str, ...], options: dict[str, Any], tolerance: float
) -> None:
    model = make(directory)
    requests = [Request(prompt, 2) for prompt in prompts(15, 1)]
    with serving(directory, *arguments, **options) as (gpu, runner):
        Driver(runner, seed=3, max_chunk=24).run(*requests)
    check(model, requests, tolerance)
    assert any(graph.num_replays for graph in gpu.graphs)


@pytest.mark.thorough
def test_a_worker_of_one_sequence_compiles_nothing_either(directory: Path) -> None:
    model = llama(directory)
    requests = [Request(prompts(15)[0], 2), *(Request(prompts(4)[0], 2, way) for way in (EVERYTHING, SamplingParams()))]
    with serving(directory, "--quantization", "fp8", "--kv-cache-dtype", "fp8", max_num_seqs=1) as (gpu, runner):
        Driver(runner, seed=3, max_chunk=24).run(*requests)
    assert all(request.error is None for request in requests)
    check(model, requests[:1], tolerance=1.0)
    assert any(graph.num_replays for graph in gpu.graphs)


def scaled_keys_and_values(directory: Path) -> transformers.PreTrainedModel:
    """A checkpoint whose keys and values are beyond what fp8 holds, and the scales that bring them back: keys are far
    beyond what the scale of values brings back."""
    model = save_model(directory, "Llama", num_hidden_layers=1)
    file, attention = directory / "model.safetensors", "model.layers.0.self_attn."
    tensors = load_file(file)
    for name, factor in (("q", 2**-16), ("k", 2**16), ("v", 2**12), ("o", 2**-12)):
        tensors[f"{attention}{name}_proj.weight"] *= factor
    model.load_state_dict(tensors, strict=False)
    scales = {f"{attention}k_scale": torch.tensor(2048.0), f"{attention}v_scale": torch.tensor(128.0)}
    save_file(tensors | scales, file)
    return model


@pytest.mark.thorough
def test_pages_in_fp8_use_the_checkpoint_s_scales(directory: Path) -> None:
    """Without them keys and values saturate, and logits are off by several."""
    model = scaled_keys_and_values(directory)
    requests = [Request(prompt, 2) for prompt in prompts(15, 9)]
    with serving(directory, "--kv-cache-dtype", "fp8", "--enforce-eager", max_num_seqs=2) as (_, runner):
        Driver(runner, seed=3, max_chunk=24).run(*requests)
    check(model, requests, tolerance=0.5)


@pytest.mark.thorough
def test_a_gguf_file_is_served_alike(directory: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from tests.unit.worker.gguf.writing import write_gguf

    model = llama(directory)
    kept = write_gguf(directory / "model.gguf", directory, gguf.GGMLQuantizationType.Q8_0)
    model.load_state_dict({name: torch.from_numpy(matrix) for name, matrix in kept.items()}, strict=False)
    requests = [Request(prompt, 2) for prompt in prompts(15, 1)]
    with serving(directory / "model.gguf") as (_, runner):
        Driver(runner, seed=3, max_chunk=24).run(*requests)
    check(model, requests)


@pytest.mark.thorough
def test_no_number_of_sequences_that_sample_compiles_the_output_layer_anew(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """17 of at most 33: neither as few as in a step that is warmed up for something else, nor as many as in the
    largest, so their products have a tile of their own. The memory of the largest step is not measured, as that takes
    most of the time."""
    monkeypatch.setattr(memory, "run_largest_step", lambda _: None)
    save_model(directory, "Llama", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    arguments = ("--quantization", "int8-weight-only", "--enforce-eager")
    limits: dict[str, Any] = {"max_num_seqs": 33, "max_num_tokens": 33, "num_blocks": 40}
    with serving(directory, *arguments, dtype="float16", **limits) as (_, runner):
        engine = Engine(runner)
        for key, prompt in enumerate(prompts(*[1] * 17)):
            engine.submit(key, prompt, 1)
        engine.run()
    assert len(engine.outputs) == 17


@pytest.mark.parametrize(("kind", "times"), [("int4, groups of 128 in bfloat16", 5), ("int8", 1.2), ("fp8", 1.2)])
def test_a_weight_is_repacked_within_a_few_times_its_memory(kind: str, times: float) -> None:
    """Beside what is stored: what the kernels read, and what is between them. A model's largest matrix has to fit so,
    beside all others."""
    quantized = WEIGHTS_ALONE[kind](torch.randn(64, 1024))
    with SimulatedGPU().running() as gpu:
        weight = quantized.to(torch.device("cuda"))
        stored = gpu.allocated
        ops = TritonOps(weight.scales.device, torch.float16)
        ops.linear(weight)  # allocates what all layers share
        before = gpu.peak = gpu.allocated
        linear = ops.linear(weight)
        taken = gpu.allocated - before
        assert taken < 1.2 * stored, "the only copy"
        assert gpu.peak - before < times * taken
        del linear


@pytest.mark.parametrize("kind", ["mean", "cls"])
def test_an_encoder_waits_for_nothing(directory: Path, kind: str) -> None:
    model = save_encoder(directory)
    asked = prompts(1, 2, 9)
    with serving(directory, "--pooling-type", kind) as (_, runner):
        vectors = [embeddings(embed_together(runner, asked[:count])) for count in (3, 1)]
    for embedded in vectors:
        for prompt, vector in zip(asked, embedded, strict=False):
            hidden = hidden_states(model, prompt)
            expected = normalized(hidden.mean(0) if kind == "mean" else hidden[0])
            np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_a_step_without_memory_fails_its_newest_sequences_and_no_others(directory: Path) -> None:
    """Wherever in the step it runs out: at every allocation that is the first to fail with so much room."""
    model = llama(directory)
    failed = set()
    with serving(directory, max_num_seqs=4) as (gpu, runner):
        total = gpu.total_bytes
        for room in (0, 5 << 10, 12 << 10):
            gpu.total_bytes = gpu.allocated + room
            driver = Driver(runner, seed=1, idle=0.0)
            driver._shuffled = list  # type: ignore[method-assign, assignment]
            sampling = [GREEDY, EVERYTHING, NAMED, EVERYTHING]
            requests = [Request(prompt, 2, way) for prompt, way in zip(prompts(3, 4, 2, 5), sampling, strict=True)]
            driver.run(*requests)
            errors = [request.error for request in requests]
            failed.add(sum(error is not None for error in errors))
            assert {*errors} <= {None, OUT_OF_MEMORY}
            assert [error is not None for error in errors] == sorted(error is not None for error in errors)
            check(model, [request for request in requests[:1] if request.error is None])
            gpu.total_bytes = total
            runner.reset()
    assert failed == {1, 3, 4}, "room was to suffice for none and for some"


@pytest.mark.thorough
def test_a_step_takes_no_memory_once_it_has_drawn(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw changes last tokens and counts: a step that failed after it would be repeated with wrong ones."""
    llama(directory)
    with serving(directory, "--enforce-eager", max_num_seqs=4) as (gpu, runner):
        generation = runner._generation
        assert isinstance(generation, DecoderGeneration)
        sampler = generation._sampler
        assert isinstance(sampler, DeviceSampler)
        total, pipeline, sample = gpu.total_bytes, sampler._pipeline, sampler.sample
        draw, num_draws = pipeline.run, 0

        def run() -> list[Request]:
            driver = Driver(runner, seed=1, idle=0.0)
            driver._shuffled = list  # type: ignore[method-assign, assignment]
            ways = (GREEDY, EVERYTHING, NAMED, NAMED)
            return driver.run(*(Request(prompt, 3, way) for prompt, way in zip(prompts(3, 4, 2, 5), ways, strict=True)))

        def draw_and_fill(*arguments: Any) -> Any:
            nonlocal num_draws
            num_draws += 1
            drawn = draw(*arguments)
            gpu.total_bytes = gpu.allocated
            return drawn

        def sample_and_free(*arguments: Any) -> Any:
            try:
                return sample(*arguments)
            finally:
                gpu.total_bytes = total

        expected = run()
        runner.reset()
        monkeypatch.setattr(pipeline, "run", draw_and_fill)
        monkeypatch.setattr(sampler, "sample", sample_and_free)
        requests = run()
    assert num_draws > 1
    assert [request.error for request in requests] == [None] * 4
    assert [request.output for request in requests] == [request.output for request in expected]
    assert [request.logprobs for request in requests] == [request.logprobs for request in expected]
