"""What a worker tells at its start."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.worker.checkpoint.find import Checkpoint
from services.worker.config import WorkerConfig
from services.worker.implementations import Implementation
from services.worker.notices import tell_blocks, tell_model, warn_of_options
from services.worker.plan.batch import Limits
from shared.status import StatusReporter, parse_status
from tests.models.case import Case
from tests.models.cases.text_part import CASES as LARGER
from tests.models.tiny import GQA, save, save_encoder


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


def told_of(directory: Path, implementation: Implementation = "auto") -> str:
    checkpoint = Checkpoint(directory, (), implementation=implementation)
    config = checkpoint.read_encoder_config() or checkpoint.read_config()
    (told,) = notes(lambda status: tell_model("my-model", config, status))
    return told


def test_the_code_that_runs_a_decoder_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, Case("llama", GQA))
    with caplog.at_level("INFO"):
        assert told_of(tmp_path) == "my-model (LlamaForCausalLM) runs with Quire's own code"
    assert caplog.messages == ["my-model (LlamaForCausalLM) runs with Quire's own code"]
    told = told_of(tmp_path, "transformers")
    assert told == "my-model (LlamaForCausalLM) runs with transformers' code on Quire's KV cache"


def test_what_is_left_out_of_a_larger_model_is_told(tmp_path: Path) -> None:
    save(tmp_path, next(case for case in LARGER if case.model_type == "llava"))
    assert told_of(tmp_path) == (
        "my-model (LlamaForCausalLM) runs with Quire's own code; only the language model is loaded, without the vision "
        "tower and its projector: images are refused"
    )


def test_an_encoder_is_told(tmp_path: Path) -> None:
    save_encoder(tmp_path, Case("bert"))
    assert told_of(tmp_path) == "my-model (BertModel) runs with Quire's own code, as an encoder"


def test_more_than_97_percent_of_a_gpu_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def warn(utilization: float, device: str = "cuda") -> list[str]:
        config = WorkerConfig(gpu_memory_utilization=utilization)
        return notes(lambda status: warn_of_options(config, device, status))

    assert warn(0.97) == warn(0.98, "cpu") == []
    (told,) = warn(0.98)
    assert told.startswith("--gpu-memory-utilization is 0.98: above 0.97 the GPU may run out of memory")
    assert caplog.messages == [told]
