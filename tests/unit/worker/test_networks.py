"""Greedy output equals transformers' in float32, for each network: with chunks beside decodes, shuffled blocks and
preemption."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import NearTies, make_runner

pytestmark = pytest.mark.usefixtures("one_thread")

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

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    # name: model_type, configuration
    "gpt2": ("gpt2", {}),
    "gpt2, scores by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "activation_function": "gelu"}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_neox, one after the other": ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}),
    "gemma": ("gemma", GQA | {"head_dim": 32}),
    "gemma2": ("gemma2", GQA | {"head_dim": 16, "sliding_window": 12, "query_pre_attn_scalar": 20}),
    "gemma3_text": ("gemma3_text", GQA | {"head_dim": 16, "sliding_window": 9, "num_hidden_layers": 7}),
    "mixtral": ("mixtral", GQA | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20}),
    "qwen2_moe": ("qwen2_moe", GQA | EXPERTS | {"shared_expert_intermediate_size": 40, "decoder_sparse_step": 2}),
    "qwen3_moe": ("qwen3_moe", GQA | EXPERTS | {"head_dim": 32, "norm_topk_prob": True, "mlp_only_layers": [1]}),
}


def save(directory: Path, model_type: str, options: dict[str, Any]) -> transformers.PreTrainedModel:
    """Saves a tiny random model with random norms and biases, and returns it."""
    known = transformers.AutoConfig.for_model(model_type)
    settings = {name: value for name, value in (SIZES | options).items() if hasattr(known, name) or name in options}
    config = transformers.AutoConfig.for_model(model_type, **settings, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    config._attn_implementation = "eager"
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                parameter.copy_(noise * (1.5 / parameter.shape[-1] ** 0.5))
            else:
                parameter.copy_(noise * 0.3 + (1.0 if name.endswith("weight") else 0.0))
    model.generation_config.eos_token_id = 2
    model.save_pretrained(directory)
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", CASES)
def test_greedy_output_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    reference = save(tmp_path, *CASES[case])
    runner = make_runner(tmp_path, 8, num_blocks=200)
    chooser = random.Random(case)
    requests = [
        Request([chooser.randrange(3, VOCAB_SIZE) for _ in range(chooser.choice((1, 2, 17, 40, 90)))], num_outputs=10)
        for _ in range(6)
    ]
    driver = Driver(runner, seed=len(case), max_chunk=chooser.choice((5, 64)), max_running=4, preempt=0.05)
    near_ties = NearTies()
    for request in driver.run(*requests):
        assert request.error is None
        assert len(request.output) == 10
        near_ties.check(reference, request.prompt, request.output)
    near_ties.report()
