"""Any value of config.json can be anything: the model runs, or one sentence refuses it, in seconds.

CI takes a sample. `make test-models` takes each value of each architecture.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from services.worker.errors import ModelError
from services.worker.fields import Fields, reading
from services.worker.models import ModelConfig
from services.worker.models.config import parse_model_config
from services.worker.ops.reference import ReferenceOps
from services.worker.weights.dummy_source import DummySource
from services.worker.weights.loader import load_decoder
from tests.models.case import Case
from tests.models.cases import ALL
from tests.models.tiny import configure
from tests.unit.worker.memory import growth_below

pytestmark = pytest.mark.usefixtures("one_thread")

IS_LONG = os.environ.get("QUIRE_TEST_MODELS") == "all"
NUM_SAMPLES, NUM_GENERIC_SAMPLES = 40, 6
MAX_SECONDS = 30.0  # of CPU time; what is refused late takes minutes
MAX_GROWTH = 1 << 30  # bytes
MAX_ELEMENTS = 1 << 21  # of all weights, for a model to be loaded
HOSTILE: list[Any] = [
    -1, 0, 1, 2, 3, 7, 512, 4096, 10**6, 10**9, 10**18, 10**400, 0.0, 1.5, -0.5, 1e308, float("nan"), float("inf"),
    True, False, None, "x", "", [], [1], ["x"], [None] * 3, [[]], {}, {"x": 1}, {"x": {"y": []}},
]  # fmt: skip
GENERIC = ("llama", "olmoe", "mimo_v2_flash", "minicpm3")
NATIVE = list({case.model_type: case for case in ALL if case.implementation == "auto"}.values())


@pytest.fixture(autouse=True)
def no_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "services.worker")  # it warns of tokens outside the vocabulary


@pytest.mark.parametrize("case", NATIVE, ids=str)
def test_whatever_a_value_is_it_works_or_is_refused(case: Case) -> None:
    check(case, None if IS_LONG else NUM_SAMPLES)


@pytest.mark.parametrize("model_type", GENERIC)
def test_transformers_code_is_refused_as_well(model_type: str) -> None:
    of_type = [case for case in ALL if case.model_type == model_type and case.implementation == "transformers"]
    check(of_type[0], 10 * NUM_GENERIC_SAMPLES if IS_LONG else NUM_GENERIC_SAMPLES)


def check(case: Case, num_samples: int | None) -> None:
    """`num_samples`: None for each value that config.json can have."""
    values = config_json(case)
    plain = read(case, values).network
    changes = [(path, value) for path in paths(values) for value in HOSTILE]
    if num_samples is not None:
        changes = random.Random(str(case)).sample(changes, num_samples)
    for path, value in changes:
        start, sentence = time.process_time(), ""
        with growth_below(MAX_GROWTH, (path, value)):
            try:
                config = read(case, changed(values, path, value))
                if config.network != plain:
                    load(config)
            except ModelError as error:
                sentence = str(error)
            except Exception as error:
                raise AssertionError(f"{path} = {value!r}") from error
        assert "\n" not in sentence
        assert time.process_time() - start < MAX_SECONDS, (path, value)


def config_json(case: Case) -> dict[str, Any]:
    config = configure(case)
    has_towers = "text_config" in case.options
    auto: Any = transformers.AutoModelForMultimodalLM if has_towers else transformers.AutoModelForCausalLM
    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    kept = {name: value for name, value in values.items() if not name.startswith(("vision_", "audio_"))}
    return kept | {"architectures": [auto._model_mapping[type(config)].__name__]}


def read(case: Case, values: dict[str, Any]) -> ModelConfig:
    with reading("config.json"):
        return parse_model_config(Path("model"), Fields(values, "config.json"), {}, case.implementation)


def load(config: ModelConfig) -> None:
    """Makes a small network with random weights. A larger one would be refused for its weights' shapes."""
    if sum(map(math.prod, config.parameters.values())) > MAX_ELEMENTS:
        return
    ops = ReferenceOps(torch.device("cpu"), torch.float32)
    with torch.inference_mode():
        load_decoder(config, ops, DummySource(config.parameters, ops.device, ops.dtype), min(config.max_model_len, 64))


def paths(values: Any, outer: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields where each value is, also inside others."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        yield (*outer, key)
        if isinstance(value, dict | list) and len(outer) < 3:
            yield from paths(value, (*outer, key))


def changed(values: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    values = copy.deepcopy(values)
    inner: Any = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return values
