"""Checkpoints whose tensors have other names than those that transformers writes today, as many published ones do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.worker.errors import ModelError
from tests.models.case import Case
from tests.models.tiny import save
from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import NearTies, make_runner

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True, slots=True)
class Published:
    case: Case
    prefix: str  # of names, which the checkpoint leaves out
    unused: tuple[str, ...]  # tensors that it holds beside the weights

    def __str__(self) -> str:
        return str(self.case)


PUBLISHED = [
    Published(Case("gpt2"), "transformer.", ("h.0.attn.bias", "h.0.attn.masked_bias")),
    Published(Case("openai-gpt"), "transformer.", ("h.0.attn.bias", "position_ids")),
    Published(Case("gpt_bigcode"), "", ("transformer.bias", "lm_head.weight")),
    Published(
        Case("gpt_neo", {"attention_types": [[["global"], 3]]}),
        "",
        ("transformer.h.1.attn.attention.bias", "transformer.h.1.attn.attention.masked_bias"),
    ),
    Published(Case("gptj", {"rotary_dim": 8}), "", ("transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias")),
    Published(Case("codegen", {"rotary_dim": 8}), "", ("transformer.h.2.attn.causal_mask",)),
    Published(Case("gpt_neox_japanese"), "", ("gpt_neox_japanese.layers.0.attention.bias", "embed_out.weight")),
    Published(Case("opt", {"word_embed_proj_dim": 48}), "model.", ("decoder.version", "lm_head.weight")),
    Published(Case("xglm"), "", ("model.embed_positions.weights", "lm_head.weight")),
    Published(Case("biogpt"), "", ("output_projection.weight",)),
]


@pytest.mark.parametrize("published", PUBLISHED, ids=str)
def test_a_published_checkpoint_gives_the_tokens_of_transformers(published: Published, tmp_path: Path) -> None:
    reference = save(tmp_path, published.case)
    rename(tmp_path, published.prefix, published.unused)
    request = Request([5, 60, 7, 100, 9, 30], num_outputs=12)
    Driver(make_runner(tmp_path), seed=0).run(request)
    near_ties = NearTies()
    near_ties.check(reference, request.prompt, request.output)
    near_ties.report()


def test_a_tensor_that_no_layer_takes_is_refused(tmp_path: Path) -> None:
    save(tmp_path, Case("gpt2"))
    rename(tmp_path, "transformer.", ("h.0.attn.gate",))
    with pytest.raises(ModelError, match=r"holds transformer\.h\.0\.attn\.gate, which GPT2LMHeadModel does not use"):
        make_runner(tmp_path)


def rename(directory: Path, prefix: str, unused: tuple[str, ...]) -> None:
    """Removes `prefix` from all names, and adds tensors with the names `unused`."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    assert all(name.startswith(prefix) for name in tensors)
    renamed = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    save_file(renamed | {name: torch.ones(1, 1, 8, 8) for name in unused}, path)
