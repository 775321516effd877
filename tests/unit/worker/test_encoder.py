"""Embeddings of the BERT family are transformers', and bit for bit the same whatever shares the step."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.worker.config import WorkerConfig
from services.worker.errors import ModelError, PlanError
from services.worker.models.config import read_model_config
from services.worker.models.encoder_config import read_encoder_config
from services.worker.models.encoder_network import EncoderStep
from services.worker.ops.reference import ReferenceOps
from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.step_plan import GeneratingSequence, NewSequence, PoolingSequence, Rows, StepPlan
from services.worker.pooling.params import PoolingParams
from services.worker.startup.encoder import encoder_max_model_len
from services.worker.step.model_runner import ModelRunner
from tests.unit.worker.driver import column
from tests.unit.worker.tiny_encoders import (
    VOCAB_SIZE,
    embed_together,
    embeddings,
    hidden_states,
    make_encoder_runner,
    normalized,
    save_encoder,
    write_modules,
)

MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}


def some_prompts(*lengths: int) -> list[list[int]]:
    chance = random.Random(3)
    return [[chance.randrange(4, VOCAB_SIZE) for _ in range(length)] for length in lengths]


def test_norms_can_have_the_names_of_old_checkpoints(tmp_path: Path) -> None:
    model = save_encoder(tmp_path)
    file = tmp_path / "model.safetensors"
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = load_file(file)
    for name in list(tensors):
        for new, former in old.items():
            if name.endswith(new):
                tensors[name.replace(new, former)] = tensors.pop(name)
    save_file(tensors, file)
    assert any(name.endswith("LayerNorm.gamma") for name in tensors)
    write_modules(tmp_path, MEAN, "Normalize")
    (prompt,) = some_prompts(30)
    (vector,) = embeddings(embed_together(make_encoder_runner(tmp_path), [prompt]))
    np.testing.assert_allclose(vector, normalized(hidden_states(model, prompt).mean(0)), atol=1e-5)


@pytest.mark.parametrize(("option", "index"), [("auto", 0), ("cls", 0), ("last", -1)])
def test_without_sentence_transformers_files_the_first_token_is_taken_or_what_the_option_says(
    tmp_path: Path, option: str, index: int
) -> None:
    model = save_encoder(tmp_path)
    (prompt,) = some_prompts(30)
    (vector,) = embeddings(embed_together(make_encoder_runner(tmp_path, pooling_type=option), [prompt]))
    np.testing.assert_allclose(vector, normalized(hidden_states(model, prompt)[index]), atol=1e-5)


def test_vectors_are_as_long_as_they_come_where_nothing_normalizes(tmp_path: Path) -> None:
    model = save_encoder(tmp_path)
    write_modules(tmp_path, MEAN)
    (prompt,) = some_prompts(30)
    runner = make_encoder_runner(tmp_path)
    mean = hidden_states(model, prompt).mean(0)
    np.testing.assert_allclose(embeddings(embed_together(runner, [prompt]))[0], mean.numpy(), atol=1e-5)
    asked = embeddings(embed_together(runner, [prompt], PoolingParams(normalize=True)))[0]
    np.testing.assert_allclose(asked, normalized(mean), atol=1e-5)


def test_a_sequence_has_the_same_bits_alone_and_in_any_batch(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    write_modules(tmp_path, MEAN, "Normalize")
    runner = make_encoder_runner(tmp_path)
    if not runner.ops.batch_invariant:
        pytest.skip("the compiled kernels are not built")
    prompts = some_prompts(40, 1, 100, 7, 64)
    together = embeddings(embed_together(runner, prompts))
    for prompt, vector in zip(prompts, together, strict=True):
        assert np.array_equal(embeddings(embed_together(runner, [prompt]))[0], vector)


def test_plain_torch_computes_the_same(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    prompts = some_prompts(20, 5)
    reference = make_encoder_runner(tmp_path, ReferenceOps(torch.device("cpu"), torch.float32))
    ours = make_encoder_runner(tmp_path)
    for a, b in zip(*(embeddings(embed_together(r, prompts)) for r in (reference, ours)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_vectors_are_cut_before_they_are_normalized_where_the_model_was_trained_for_it(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, matryoshka_dimensions=[8, 16])
    (prompt,) = some_prompts(12)
    runner = make_encoder_runner(tmp_path)
    cut = embeddings(embed_together(runner, [prompt], PoolingParams(dimensions=8)))[0]
    np.testing.assert_allclose(cut, normalized(hidden_states(model, prompt)[0, :8]), atol=1e-5)
    (error,) = embed_together(runner, [prompt], PoolingParams(dimensions=9)).errors
    assert error.message == "dimensions must be one of 8, 16."


def test_other_models_refuse_shorter_vectors_but_take_their_own_size(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    (prompt,) = some_prompts(12)
    runner = make_encoder_runner(tmp_path)
    assert len(embeddings(embed_together(runner, [prompt], PoolingParams(dimensions=48)))[0]) == 48
    result = embed_together(runner, [prompt], PoolingParams(dimensions=8))
    assert [error.message for error in result.errors] == [
        "dimensions must be 48: the model was not trained for shorter embeddings."
    ]
    assert not result.pooled


def test_one_sequence_that_is_no_number_fails_alone(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    runner = make_encoder_runner(tmp_path)
    spoil_sequences_over(20, runner)
    result = embed_together(runner, some_prompts(10, 25))
    assert [pooled.wire_id for pooled in result.pooled] == [1]
    runner = make_encoder_runner(tmp_path, pooling_type="mean")
    spoil_sequences_over(20, runner)
    result = embed_together(runner, some_prompts(10, 25))
    assert [pooled.wire_id for pooled in result.pooled] == [1]
    assert [error.wire_id for error in result.errors] == [2]


def spoil_sequences_over(length: int, runner: ModelRunner) -> None:
    """Makes the hidden states of longer sequences NaN."""
    network = runner._forward._encoder.network  # type: ignore[attr-defined]
    run = network.hidden_states

    def spoiled(step: EncoderStep) -> Tensor:
        lengths = torch.tensor(step.batch.lengths)
        is_long = (lengths > length).repeat_interleave(lengths)
        return run(step).masked_fill(is_long[:, None], torch.nan)  # type: ignore[no-any-return]

    network.hidden_states = spoiled


def test_parts_of_sequences_and_generation_break_the_contract(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    runner = make_encoder_runner(tmp_path)
    whole = PoolingSequence(1, 0, column([5] * 9), 9, 0, column([0]), PoolingParams())

    def launch(sequence: NewSequence, count: int) -> None:
        computed = column([sequence.num_computed_tokens])
        rows = Rows(column([1]), column([0]), column([count]), computed, column([0, 0]), column([]))
        runner.reset()
        runner.launch(StepPlan(1, 1, column([]), (sequence,), rows), 0.0)

    with pytest.raises(PlanError, match="is not whole"):
        launch(whole, 4)
    with pytest.raises(PlanError, match="has computed tokens"):
        launch(dataclasses.replace(whole, num_computed_tokens=4), 5)
    with pytest.raises(PlanError, match="asks to generate"):
        launch(GeneratingSequence(1, 0, column([5] * 9), 9, 0, column([0]), SamplingParams(), 0), 9)


def test_the_longest_input_is_what_sentence_transformers_were_told_else_what_has_positions(tmp_path: Path) -> None:
    save_encoder(tmp_path, "RobertaModel")
    config = read_encoder_config(tmp_path)
    assert config is not None
    assert config.max_model_len == 130 - 2
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 64, "do_lower_case": false}')
    config = read_encoder_config(tmp_path)
    assert config is not None
    assert config.max_model_len == 64
    assert encoder_max_model_len(WorkerConfig(), config) == 64
    assert encoder_max_model_len(WorkerConfig(max_num_batched_tokens=40), config) == 40
    long = dataclasses.replace(config, max_model_len=8192)
    assert encoder_max_model_len(WorkerConfig(), long) == 2048
    assert encoder_max_model_len(WorkerConfig(enable_chunked_prefill=False), long) == 8192
    with pytest.raises(ModelError, match="at most 64 tokens"):
        encoder_max_model_len(WorkerConfig(max_model_len=65), config)
    with pytest.raises(ModelError, match="raise --max-num-batched-tokens"):
        encoder_max_model_len(WorkerConfig(max_model_len=64, max_num_batched_tokens=40), config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "mish"}, "hidden_act is mish, which is not supported"),
        ({"position_embedding_type": "relative_key"}, 'position_embedding_type is "relative_key"; expected absolute'),
        ({"is_decoder": True}, "sets is_decoder to true, which is not supported"),
        ({"intermediate_size": 95}, r"is \(96, 48\); config.json says \(95, 48\)|is \(96,\); config.json says \(95,\)"),
        ({"num_hidden_layers": 4}, "lacks bert.encoder.layer.3.attention.output.LayerNorm.bias and 15 more"),
        ({"num_hidden_layers": 2}, "does not use"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_encoder(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=message):
        make_encoder_runner(tmp_path)


def test_other_heads_are_refused_with_what_is_supported(tmp_path: Path) -> None:
    save_encoder(tmp_path, "BertForTokenClassification")
    assert read_encoder_config(tmp_path) is None
    with pytest.raises(ModelError, match=r"BertForTokenClassification, which is not supported; `quire models`"):
        read_model_config(tmp_path)


def test_encoders_are_not_quantized(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    with pytest.raises(ModelError, match="in floating point only"):
        make_encoder_runner(tmp_path, quantization="int8")
