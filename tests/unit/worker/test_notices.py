"""What a worker tells at its start."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.worker.config import WorkerConfig
from services.worker.models import read_encoder_config, read_model_config
from services.worker.notices import tell_blocks, tell_model, warn_of_options
from services.worker.plan.batch import Limits
from shared.status import StatusReporter, parse_status
from tests.unit.worker.tiny_models import TINY


def notes(tell: Callable[[StatusReporter], None]) -> list[str]:
    read, write = os.pipe()
    tell(StatusReporter(write))
    os.close(write)
    with os.fdopen(read) as lines:
        statuses = [parse_status(line) for line in lines]
    assert all(status.is_note for status in statuses)
    return [status.detail for status in statuses]


def test_blocks_are_told_as_vllm_does(caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(27896, 16, 256, 2048, 4096, 128256, num_host_blocks=2048)

    with caplog.at_level("INFO"):
        assert notes(lambda status: tell_blocks(limits, "cuda", status)) == ["# GPU blocks: 27896, # CPU blocks: 2048"]
        assert notes(lambda status: tell_blocks(limits, "cpu", status)) == ["# CPU blocks: 27896, # swap blocks: 2048"]
    assert caplog.messages == ["# GPU blocks: 27896, # CPU blocks: 2048", "# CPU blocks: 27896, # swap blocks: 2048"]


SIZES = TINY | {"vocab_size": 100}
LLAMA = SIZES | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
ARCEE = SIZES | {"model_type": "arcee", "architectures": ["ArceeForCausalLM"]}
LLAVA = {"architectures": ["LlavaForConditionalGeneration"], "text_config": LLAMA}
BERT = SIZES | {"model_type": "bert", "architectures": ["BertModel"]}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, ["LlamaForCausalLM runs with Quire's own code"]),
        (ARCEE, ["ArceeForCausalLM runs with transformers' code on Quire's KV cache"]),
        (
            LLAVA,
            [
                "LlamaForCausalLM runs with Quire's own code",
                "only the language model is loaded, without the vision tower and its projector: images are refused",
            ],
        ),
    ],
)
def test_it_is_told_how_a_model_runs(
    config: dict[str, Any], expected: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = read_model_config(tmp_path)
    with caplog.at_level("INFO"):
        assert notes(lambda status: tell_model(model, status)) == expected
    assert caplog.messages[-len(expected) :] == expected


def test_an_encoder_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    model = read_encoder_config(tmp_path)
    assert model is not None
    told = notes(lambda status: tell_model(model, status))
    assert told == ["BertModel runs with Quire's own code, as an encoder"]


def test_more_than_97_percent_of_a_gpu_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def warn(utilization: float, device: str = "cuda") -> list[str]:
        config = WorkerConfig(gpu_memory_utilization=utilization)
        return notes(lambda status: warn_of_options(config, device, status))

    assert warn(0.97) == warn(0.98, "cpu") == []
    (told,) = warn(0.98)
    assert told.startswith("--gpu-memory-utilization is 0.98: above 0.97 the GPU may run out of memory")
    assert caplog.messages == [told]
