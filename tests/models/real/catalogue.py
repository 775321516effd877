"""Models with weights that were trained: where each comes from, and which family of networks it stands for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import huggingface_hub
from huggingface_hub.errors import LocalEntryNotFoundError

from tests.models.case import Case
from tests.models.tiny import GQA

ROOT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("QUIRE_SHARED", ROOT.parent / "shared")) / "models"
BUNDLED = ROOT / "quire" / "models"


@dataclass(frozen=True)
class Real:
    name: str
    family: str  # transformers' model type
    source: str  # where it comes from, in words
    directory: Path
    is_encoder: bool = False

    @property
    def is_here(self) -> bool:
        return (self.directory / "config.json").is_file()


# Models in this repository or beside it.
AT_HAND = [
    Real("stories260k", "llama", "../shared, by karpathy/tinyllamas", SHARED / "stories260k"),
    Real("quire-chat", "llama", "bundled", BUNDLED / "quire-chat"),
    Real("quire-chat-draft", "llama", "bundled", BUNDLED / "quire-chat-draft"),
]

# Small ones that others published, by name on the hub, with their family. They are compared where the hub's cache or
# `--models` has them; nothing is downloaded.
PUBLISHED: list[tuple[str, str]] = [
    ("HuggingFaceTB/SmolLM2-135M-Instruct", "llama"),
    ("Qwen/Qwen2.5-0.5B-Instruct", "qwen2"),
    ("Qwen/Qwen3-0.6B", "qwen3"),
    ("google/gemma-3-270m-it", "gemma3_text"),
    ("distilbert/distilgpt2", "gpt2"),
    ("EleutherAI/gpt-neo-125m", "gpt_neo"),
    ("EleutherAI/pythia-14m", "gpt_neox"),
    ("facebook/opt-125m", "opt"),
    ("bigscience/bloom-560m", "bloom"),
    ("sentence-transformers/all-MiniLM-L6-v2", "bert"),
    ("sentence-transformers/all-distilroberta-v1", "roberta"),
    ("answerdotai/ModernBERT-base", "modernbert"),
]
ENCODERS = {"bert", "roberta", "modernbert"}

_SIZES = {"vocab_size": 1001, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 512}
_SMALL_HEADS = GQA | {"head_dim": 16}
_CHOSEN = {"num_experts_per_tok": 2}


def _trained(model_type: str, options: Mapping[str, Any] = MappingProxyType({}), head: str = "") -> Case:
    return Case(model_type, _SIZES | dict(options), head=head)


# Families of which no published model is at hand: `training.py` trains one on the text of the bundled models.
TRAINED = [
    _trained("gpt2"),
    _trained("gpt_neo", {"attention_types": [[["global", "local"], 2]], "num_hidden_layers": 4, "window_size": 16}),
    _trained("gpt_neox"),
    _trained("opt", {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    _trained("bloom"),
    _trained("falcon"),
    _trained("phi"),
    _trained("qwen3", _SMALL_HEADS),
    _trained("gemma3_text", _SMALL_HEADS | {"sliding_window": 16, "num_hidden_layers": 4, "sliding_window_pattern": 2}),
    _trained("mixtral", _SMALL_HEADS | _CHOSEN | {"num_local_experts": 4}),
    _trained("gpt_oss", _SMALL_HEADS | _CHOSEN | {"sliding_window": 16, "num_local_experts": 4}),
    _trained(
        "deepseek_v3",
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 32,
            "q_lora_rank": 48,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 8,
            "v_head_dim": 24,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 96,
            "first_k_dense_replace": 1,
            "n_group": 2,
            "topk_group": 1,
        },
    ),
    _trained("olmoe", GQA | _CHOSEN | {"num_experts": 4}),
    _trained("bert", head="MaskedLM"),
    _trained("modernbert", {"local_attention": 32, "num_hidden_layers": 4}, head="MaskedLM"),
]


def published(directory: Path | None) -> list[Real]:
    """`directory`: holds models in directories with the last part of their names; None: only the hub's cache is
    searched."""
    return [
        Real(name.rpartition("/")[2], family, f"{name} on the hub", _find(name, directory), family in ENCODERS)
        for name, family in PUBLISHED
    ]


def _find(name: str, directory: Path | None) -> Path:
    if directory is not None and (found := directory / name.rpartition("/")[2]).is_dir():
        return found
    try:
        return Path(huggingface_hub.snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        return Path(name)
