"""Checkpoints that name a language model otherwise than transformers' class for it, or hold it in a larger part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.models.case import Case
from tests.models.cases.text_part import CASES
from tests.models.tiny import save
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import make_runner

PROMPT = [5, 9, 17, 33, 4]


def find(model_type: str) -> Case:
    return next(case for case in CASES if case.model_type == model_type)


def generate(directory: Path) -> list[int]:
    request = Request(PROMPT, 8)
    Driver(make_runner(directory, num_blocks=20), seed=1, max_chunk=3).run(request)
    assert request.error is None
    return request.output


@pytest.mark.parametrize(
    ("thinker", "architecture"),
    [
        ("qwen2_5_omni_thinker", "Qwen2_5OmniModel"),
        ("qwen2_5_omni_thinker", "Qwen2_5OmniForConditionalGeneration"),
        ("qwen3_omni_moe_thinker", "Qwen3OmniMoeForConditionalGeneration"),
    ],
)
def test_a_whole_omni_checkpoint_gives_its_thinker_s_text(thinker: str, architecture: str, tmp_path: Path) -> None:
    save(tmp_path, find(thinker))
    expected = generate(tmp_path)
    path = tmp_path / "config.json"
    whole = {
        "architectures": [architecture],
        "model_type": thinker.removesuffix("_thinker"),
        "thinker_config": json.loads(path.read_text()),
    }
    path.write_text(json.dumps(whole))
    weights = tmp_path / "model.safetensors"
    tensors = {f"thinker.{name}": tensor for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    assert generate(tmp_path) == expected


def test_kimi_k2_5_has_two_spellings(tmp_path: Path) -> None:
    save(tmp_path, find("kimi_k25"))
    expected = generate(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["KimiK25ForConditionalGeneration"]}))
    assert generate(tmp_path) == expected
