"""Tiny random models, made by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.models.case import Case

VOCAB_SIZE = 199
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
GQA = {"num_key_value_heads": 2}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}


def save(directory: Path, case: Case) -> transformers.PreTrainedModel:
    """Saves a model with random weights, norms and biases, and returns it."""
    model: Any = transformers.AutoModelForCausalLM.from_config(configure(case), dtype=torch.float32)  # type: ignore[no-untyped-call]
    randomize(model)
    model.generation_config.eos_token_id = 2
    model.save_pretrained(directory)
    return model  # type: ignore[no-any-return]


def save_encoder(directory: Path, case: Case) -> transformers.PreTrainedModel:
    """Saves an encoder with random weights, norms and biases, and returns it."""
    kind = getattr(transformers, f"AutoModelFor{case.head}" if case.head else "AutoModel")
    model: Any = kind.from_config(configure(case), dtype=torch.float32)
    randomize(model)
    model.save_pretrained(directory)
    return model  # type: ignore[no-any-return]


def configure(case: Case) -> transformers.PretrainedConfig:
    known = transformers.AutoConfig.for_model(case.model_type)
    settings = {name: value for name, value in SIZES.items() if hasattr(known, name)}
    settings |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0} | case.options
    config = transformers.AutoConfig.for_model(case.model_type, **settings)
    config._attn_implementation = "eager"
    return config


def randomize(model: transformers.PreTrainedModel) -> None:
    model.eval()  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                parameter.copy_(noise * (1.5 / parameter.shape[-1] ** 0.5))
            else:
                parameter.copy_(noise * 0.3 + (1.0 if name.endswith("weight") else 0.0))
