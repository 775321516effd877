"""Scales of an fp8 KV cache: names in checkpoints, what stands in for missing ones, what is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.models.config import read_model_config
from services.worker.pages.kv_cache import allocate_pages
from services.worker.startup.load import load_worker
from services.worker.weights.kv_scales import KVScales, read_kv_scales
from tests.unit.worker.tiny_models import save_model
from tests.unit.worker.triton.simulated_worker import write_tokenizer

ATTENTION = "model.layers.{}.self_attn."
STATIC_FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_model(tmp_path, "Llama", num_hidden_layers=2)
    return tmp_path


def add(directory: Path, tensors: dict[str, Tensor], scheme: dict[str, Any] | None = None) -> None:
    file, path = directory / "model.safetensors", directory / "config.json"
    save_file(load_file(file) | tensors, file)
    if scheme is not None:
        settings = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": settings}))


def read(directory: Path, load_format: str = "auto") -> list[KVScales]:
    return read_kv_scales(directory, read_model_config(directory), load_format)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k_scale", "v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_every_name_that_checkpoints_give_them(
    directory: Path, caplog: pytest.LogCaptureFixture, key: str, value: str, shape: tuple[int, ...]
) -> None:
    for_layers = [(0.25, 0.5), (2.0, 4.0)]
    add(
        directory,
        {
            ATTENTION.format(layer) + name: torch.full(shape, scale, dtype=torch.bfloat16)
            for layer, scales in enumerate(for_layers)
            for name, scale in zip((key, value), scales, strict=True)
        },
        STATIC_FP8,
    )
    with caplog.at_level(logging.INFO):
        assert read(directory) == [KVScales(*scales) for scales in for_layers]
    assert caplog.messages == ["the KV cache is in fp8 with the checkpoint's scales"]
    pages = allocate_pages(read_model_config(directory), 2, 8, torch.device("cpu"), torch.float32, read(directory))
    assert [(layer.key_scale, layer.value_scale) for layer in pages] == for_layers


def test_an_old_checkpoint_has_one_scale_for_both(directory: Path) -> None:
    add(directory, {ATTENTION.format(layer) + "kv_scale": torch.tensor(0.5) for layer in range(2)})
    assert read(directory) == [KVScales(0.5, 0.5)] * 2


def test_missing_scales_are_1_and_the_log_says_so(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read(directory) == [KVScales(1.0, 1.0)] * 2
    add(directory, {ATTENTION.format(1) + "k_scale": torch.tensor(0.5)})
    assert read(directory) == [KVScales(1.0, 1.0), KVScales(0.5, 0.5)]
    assert read(directory, "dummy") == [KVScales(1.0, 1.0)] * 2
    assert [message.split(":")[0] for message in caplog.messages] == [
        "the KV cache is in fp8 with scale 1.0 in all layers",
        "the KV cache is in fp8 with scale 1.0 in 1 of 2 layers (0)",
        "the KV cache is in fp8 with scale 1.0 in all layers",
    ]


@pytest.mark.parametrize(
    ("scale", "problem"),
    [
        (torch.ones(2), r"is F32 \(2,\); only one number per layer is supported"),
        (torch.ones(1, dtype=torch.int32), "is I32"),
        (torch.tensor(0.0), "is 0.0; a scale is a positive number"),
        (torch.tensor(torch.nan), "is nan; a scale is a positive number"),
    ],
)
def test_what_is_no_scale_is_refused(directory: Path, scale: Tensor, problem: str) -> None:
    add(directory, {ATTENTION.format(0) + "v_scale": scale})
    with pytest.raises(ModelError, match=rf"model\.layers\.0\.self_attn\.v_scale in .* {problem}"):
        read(directory)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "int"}, r"8 bits \(int, symmetric\), with static scales by tensor"),
        ({"dynamic": True, "strategy": "token"}, r"8 bits \(float, symmetric\), with dynamic scales by token"),
        ({"num_bits": 4}, r"4 bits \(float, symmetric\)"),
    ],
)
def test_another_form_of_cache_is_a_sentence(directory: Path, change: dict[str, Any], words: str) -> None:
    add(directory, {}, STATIC_FP8 | change)
    with pytest.raises(
        ModelError, match=rf"^--kv-cache-dtype is fp8, but .* is made for a KV cache of {words}.*; only fp8"
    ):
        read(directory)


def test_scales_are_no_obstacle_where_the_cache_stays_in_floats(directory: Path) -> None:
    """Nor is a scheme that is not supported."""
    names = ("q_scale", "k_scale", "v_scale", "prob_scale", "k_proj.output_scale")
    add(
        directory,
        {ATTENTION.format(layer) + name: torch.tensor(0.5) for layer in range(2) for name in names},
        STATIC_FP8 | {"type": "int"},
    )
    write_tokenizer(directory)
    config = WorkerConfig(model=str(directory), num_gpu_blocks_override=4, num_threads=1, device="cpu")
    assert load_worker(config, lambda *_: None).runner.limits.num_blocks == 4
