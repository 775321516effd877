"""How far quantization moves a trained model's logits: bounds a quarter above benchmarks/results/quantization.json."""

from __future__ import annotations

import pytest

from benchmarks.quantization import BUNDLED, Accuracy, compare, held_out_answers, schemes
from services.worker.models.config import read_model_config

# Mean error of a logit, mean divergence in nats.
BOUNDS = {
    "fp8": (0.22, 1e-4),
    "int8": (0.11, 1e-5),
    "int8-weight-only": (0.065, 1e-5),
    "int4": (0.57, 2e-4),  # rounds as the next one
    "int4-groups-of-128": (0.57, 2e-4),
    "int4-groups-of-64": (0.48, 2e-4),
    "int4-groups-of-32": (0.46, 2e-4),
    "gguf-q8_0": (0.045, 1e-5),
    "gguf-q4_0": (0.50, 2e-4),
}


@pytest.fixture(scope="module")
def figures() -> dict[str, Accuracy]:
    return compare(BUNDLED, schemes(read_model_config(BUNDLED)), held_out_answers(count=1))


@pytest.mark.usefixtures("one_thread")
def test_every_scheme_keeps_the_bundled_model_s_answers(figures: dict[str, Accuracy]) -> None:
    assert figures.keys() == BOUNDS.keys() | {"float32"}
    assert figures["float32"].logit_error_max == 0
    for scheme, (logit_error, divergence) in BOUNDS.items():
        accuracy = figures[scheme]
        assert 0 < accuracy.logit_error_mean < logit_error, scheme
        assert accuracy.kl_divergence < divergence, scheme
        assert accuracy.perplexity == pytest.approx(figures["float32"].perplexity, rel=0.001), scheme


def test_finer_is_nearer(figures: dict[str, Accuracy]) -> None:
    error = {scheme: accuracy.logit_error_mean for scheme, accuracy in figures.items()}
    assert error["gguf-q8_0"] < error["int8-weight-only"] < error["int8"] < error["fp8"] < error["int4-groups-of-32"]
    assert error["int4-groups-of-32"] < error["int4-groups-of-64"] < error["int4-groups-of-128"]
