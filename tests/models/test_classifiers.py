"""Scores equal transformers' logits in float32, for each classifier, and have the same bits alone and in a batch."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from services.worker.errors import ModelError
from services.worker.models.encoder_config import read_encoder_config
from services.worker.plan.step_plan import F32
from services.worker.pooling.config import PoolingKind, read_pooling
from services.worker.pooling.params import ClassificationParams, PoolingParams
from services.worker.startup.encoder import EncoderStart
from services.worker.step.model_runner import ModelRunner
from tests.models.case import Case, chosen
from tests.models.encoder_cases import CLASSIFIERS
from tests.models.tiny import EXPERTS, GQA, VOCAB_SIZE, save_encoder
from tests.unit.worker.tiny_encoders import embed_together, embeddings, make_encoder_runner
from tests.unit.worker.tiny_models import make_runner

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = (2, 3, 17, 64, 65, 100)
DECODERS = [
    Case("qwen3", GQA | {"head_dim": 16, "num_labels": 3}, mechanism="a classifier after a decoder's last token"),
    Case("llama", GQA | {"num_labels": 1}),
    Case("mistral", GQA | {"sliding_window": 20}),
    Case("qwen2", GQA),
    Case("gemma2", GQA | {"head_dim": 16, "sliding_window": 20}),
    Case("phi3", GQA),
    Case("gemma", GQA | {"head_dim": 16}),
    Case("mixtral", GQA | {"num_local_experts": 6}),
    Case("qwen3_moe", GQA | EXPERTS | {"head_dim": 16}),
]


def some_pairs() -> list[tuple[list[int], int]]:
    """Token ids, and the index of the second text's first token."""
    chooser = random.Random(11)
    return [([chooser.randrange(3, VOCAB_SIZE) for _ in range(n)], chooser.randrange(1, n)) for n in LENGTHS]


def score_together(
    runner: ModelRunner, pairs: Sequence[tuple[list[int], int]], *, activates: bool = False
) -> list[F32]:
    params = [ClassificationParams(second, activates) for _, second in pairs]
    return embeddings(embed_together(runner, [prompt for prompt, _ in pairs], params))


def logits(model: transformers.PreTrainedModel, token_ids: Sequence[int], second: int | None) -> torch.Tensor:
    types = (
        {} if second is None else {"token_type_ids": torch.tensor([[int(i >= second) for i in range(len(token_ids))]])}
    )
    with torch.no_grad():
        result: torch.Tensor = model(torch.tensor([token_ids]), **types).logits[0]
    return result


@pytest.mark.parametrize("case", chosen(CLASSIFIERS), ids=str)
def test_scores_of_pairs_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    model = save_encoder(tmp_path, case)
    runner = make_encoder_runner(tmp_path, max_num_batched_tokens=512)
    pairs = some_pairs()
    has_types = getattr(model.config, "type_vocab_size", 0) > 1
    for pair, outputs in zip(pairs, score_together(runner, pairs), strict=True):
        expected = logits(model, pair[0], pair[1] if has_types else None)
        np.testing.assert_allclose(outputs, expected, atol=2e-5)
        assert np.array_equal(score_together(runner, [pair])[0], outputs)
    if has_types:
        swapped = [(prompt, second - 1) for prompt, second in pairs]
        assert not np.allclose(score_together(runner, swapped)[0], score_together(runner, pairs)[0])


@pytest.mark.parametrize("case", chosen(DECODERS), ids=str)
def test_scores_of_decoders_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    options = {"pad_token_id": None} | case.options
    model = save_encoder(tmp_path, Case(case.model_type, options, head="SequenceClassification"))
    runner = make_runner(tmp_path, max_num_batched_tokens=512)
    pairs = some_pairs()
    for (prompt, _), outputs in zip(pairs, score_together(runner, pairs), strict=True):
        np.testing.assert_allclose(outputs, logits(model, prompt, None), atol=1e-4)
        assert np.array_equal(score_together(runner, [(prompt, 1)])[0], outputs)


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"
ACTIVATIONS: list[tuple[dict[str, Any], Callable[[torch.Tensor], torch.Tensor]]] = [
    ({"num_labels": 1}, torch.sigmoid),
    ({"num_labels": 3}, lambda x: x.softmax(-1)),
    ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.sigmoid),
    ({"num_labels": 1, "problem_type": "regression"}, lambda x: x),
    ({"num_labels": 1, "sentence_transformers": {"activation_fn": IDENTITY}}, lambda x: x),
    ({"num_labels": 2, "sbert_ce_default_activation_function": SIGMOID}, torch.sigmoid),
]


@pytest.mark.parametrize(("options", "expected"), ACTIVATIONS)
def test_config_json_decides_the_activation(
    tmp_path: Path, options: dict[str, Any], expected: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    head = {"num_labels": options["num_labels"]}
    model = save_encoder(tmp_path, Case("bert", head, head="SequenceClassification"))
    set_config(tmp_path, options)
    pairs = some_pairs()[:3]
    results = score_together(make_encoder_runner(tmp_path), pairs, activates=True)
    for (prompt, second), scores in zip(pairs, results, strict=True):
        np.testing.assert_allclose(scores, expected(logits(model, prompt, second)).numpy(), atol=2e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}},
            "activation_fn is torch.*Tanh",
        ),
        ({"problem_type": "guess"}, 'problem_type is "guess"; expected regression'),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label is an object of 2 values; expected a label for each number"),
        ({"id2label": {"0": "\ud800", "1": "b"}}, "expected labels that are valid Unicode"),
        ({"id2label": {"0": "a" * (3 << 18), "1": "b"}}, "expected at most 786,432 bytes"),
        ({"id2label": {str(index): "" for index in range(65_537)}}, "id2label is an object of 65,537 values; expected"),
        ({"num_labels": 0}, "num_labels is 0; expected an integer from 1"),
    ],
)
def test_configurations_that_are_not_supported(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    save_encoder(tmp_path, Case("bert", head="SequenceClassification"))
    set_config(tmp_path, options)
    with pytest.raises(ModelError, match=message):
        read_encoder_config(tmp_path)


def test_labels_have_their_names_or_numbers(tmp_path: Path) -> None:
    save_encoder(tmp_path, Case("bert", head="SequenceClassification"))
    for options, labels in (
        ({}, ("LABEL_0", "LABEL_1")),
        ({"id2label": {"0": "bad", "1": "good", "2": "unclear"}}, ("bad", "good", "unclear")),
        ({"num_labels": 2}, ("LABEL_0", "LABEL_1")),  # as in transformers, it wins over `id2label` of another length
    ):
        set_config(tmp_path, options)
        config = read_encoder_config(tmp_path)
        assert config is not None
        assert config.classifier is not None
        assert config.classifier.labels == labels


def test_a_classifier_pools_as_it_was_trained(tmp_path: Path) -> None:
    save_encoder(tmp_path, Case("modernbert", {"classifier_pooling": "mean"}, head="SequenceClassification"))
    config = read_encoder_config(tmp_path)
    assert config is not None
    start = EncoderStart(config)
    assert start.default_pooling is PoolingKind.MEAN
    start.check_pooling(PoolingKind.MEAN)
    with pytest.raises(ModelError, match="classifier was trained with mean: use --pooling-type mean"):
        start.check_pooling(PoolingKind.CLS)


def test_pooling_type_overrides_the_files_of_a_classifier(tmp_path: Path) -> None:
    save_encoder(tmp_path, Case("modernbert", {"classifier_pooling": "mean"}, head="SequenceClassification"))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    config = read_encoder_config(tmp_path)
    assert config is not None
    start = EncoderStart(config)
    with pytest.raises(ModelError, match="use --pooling-type mean"):
        start.check_pooling(read_pooling(tmp_path, "auto", start.default_pooling).kind)
    start.check_pooling(read_pooling(tmp_path, "mean", start.default_pooling).kind)


def test_models_refuse_what_they_do_not_compute(tmp_path: Path) -> None:
    save_encoder(tmp_path / "a", Case("bert", head="SequenceClassification"))
    save_encoder(tmp_path / "b", Case("bert"))
    for directory, params, message in (
        ("a", PoolingParams(normalize=True), "The model is a classifier: it gives no embeddings."),
        ("b", ClassificationParams(), "The model is not a classifier."),
    ):
        result = embed_together(make_encoder_runner(tmp_path / directory), [[5, 6]], params)
        [error] = result.errors
        assert (error.message, error.is_request_at_fault) == (message, True)


def set_config(directory: Path, options: dict[str, Any]) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | options))
