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
    has_towers = "text_config" in case.options
    auto: Any = transformers.AutoModelForMultimodalLM if has_towers else transformers.AutoModelForCausalLM
    model = auto.from_config(configure(case), dtype=torch.float32)
    _randomize(model)
    model.generation_config.eos_token_id = 2
    model.save_pretrained(directory)
    return model


def save_encoder(directory: Path, case: Case) -> transformers.PreTrainedModel:
    """Saves an encoder with random weights, norms and biases, and returns it."""
    auto: Any = getattr(transformers, f"AutoModelFor{case.head}" if case.head else "AutoModel")
    model = auto.from_config(configure(case), dtype=torch.float32)
    _randomize(model)
    model.save_pretrained(directory)
    return model


def _randomize(model: Any) -> None:
    model.eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                parameter.copy_(noise * (1.5 / parameter.shape[-1] ** 0.5))
            else:
                parameter.copy_(noise * 0.3 + (1.0 if name.endswith("weight") else 0.0))
        parameters = dict(model.named_parameters())
        for name, tensor in model.state_dict().items():
            if name.endswith("e_score_correction_bias"):
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
            elif name not in parameters and tensor.numel() == 1 and tensor.is_floating_point():
                tensor.mul_(1.0 + 0.3 * torch.randn((), generator=generator))  # a stored factor, such as Gemma 4's


def configure(case: Case) -> Any:
    """A model that takes more than text nests the language model's values in `text_config`."""
    known = transformers.AutoConfig.for_model(case.model_type)
    text = case.options.get("text_config")
    if text is not None:
        kind = text.get("model_type")
        known = known.text_config if kind is None else transformers.AutoConfig.for_model(kind)
    sizes = {name: value for name, value in SIZES.items() if hasattr(known, name)}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    values = sizes | ends
    values = values | case.options if text is None else case.options | {"text_config": values | text}
    config = transformers.AutoConfig.for_model(case.model_type, **values)
    config._attn_implementation = case.attention
    return config
