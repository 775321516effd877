"""A model's tokenizer and defaults, read from its files without a network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quire import SamplingParams
from quire.offline.model_files import default_sampling_params, load_tokenizer
from services.worker.config import WorkerConfig

BUNDLED = Path(__file__).parents[3] / "quire" / "models" / "quire-chat"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for file in BUNDLED.glob("*.json"):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_the_tokenizer_is_that_of_the_models_directory(directory: Path) -> None:
    for config in (WorkerConfig(), WorkerConfig(model=str(directory))):
        tokenizer = load_tokenizer(config)
        assert tokenizer.decode(tokenizer.encode("What is 7 plus 5?"), skip_special_tokens=True) == "What is 7 plus 5?"


def test_where_there_is_none_that_is_told(directory: Path) -> None:
    for file in directory.glob("*token*"):
        file.unlink()
    with pytest.raises(ValueError, match="transformers cannot read the model's tokenizer"):
        load_tokenizer(WorkerConfig(model=str(directory)))
    with pytest.raises(ValueError, match="no directory /nowhere"):
        load_tokenizer(WorkerConfig(model="/nowhere"))


def test_defaults_are_those_of_the_generation_config(directory: Path) -> None:
    generation = {"temperature": 0.25, "top_k": 7, "eos_token_id": 1, "top_p": 5}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    config = WorkerConfig(model=str(directory))

    assert default_sampling_params(config) == SamplingParams(temperature=0.25, top_k=7)
    (directory / "generation_config.json").unlink()
    assert default_sampling_params(config) == SamplingParams()
    (directory / "config.json").unlink()
    with pytest.raises(ValueError, match="no model directory"):
        default_sampling_params(config)
