"""Small random checkpoints, made and judged by transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from services.worker.checkpoint.find import Checkpoint
from services.worker.implementations import Implementation
from services.worker.models.decoder import Decoder
from services.worker.ops.interface import Ops
from services.worker.pages.kv_cache import allocate_pages
from services.worker.plan.batch import Limits
from services.worker.pooling.config import PoolingConfig, PoolingKind
from services.worker.sampling.grammars import Grammars
from services.worker.startup.create_ops import create_ops
from services.worker.startup.device import compose_device
from services.worker.startup.runners import create_decoder_runner
from services.worker.step.model_runner import ModelRunner
from services.worker.weights.loader import load_decoder
from services.worker.weights.open import open_weights

VOCAB_SIZE = 199

TINY: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config_class(family: str) -> Any:
    """Of `family` as in LlamaForCausalLM, without that suffix."""
    model = getattr(transformers, f"{family}ForCausalLM", None)
    return model.config_class if model else getattr(transformers, f"{family}Config")


def make_model(family: str, seed: int = 0, **overrides: Any) -> transformers.PreTrainedModel:
    """Norms and biases are random too: none is missed."""
    config = config_class(family)(**(TINY | overrides))
    config._attn_implementation = "eager"
    # A family without a model class of its own runs as Llama.
    model = getattr(transformers, f"{family}ForCausalLM", transformers.LlamaForCausalLM)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2:
                parameter.copy_(noise * (1.5 / parameter.shape[1] ** 0.5))
            else:
                parameter.copy_(noise * 0.3 + (1.0 if "norm" in name else 0.0))
    model.generation_config.eos_token_id = 2
    return model


def save_model(directory: Path, family: str, seed: int = 0, **overrides: Any) -> transformers.PreTrainedModel:
    """Saves a model, with the names of tensors that the family's own checkpoints have. For some families, transformers
    writes Llama's names instead."""
    model = make_model(family, seed, **overrides)
    model.save_pretrained(directory)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["architectures"] = [f"{family}ForCausalLM"]
    for own, written in model.config.attribute_map.items():
        config[own] = config.pop(written)
    path.write_text(json.dumps(config))
    return model


def make_decoder(
    directory: Path, ops: Ops, implementation: Implementation = "auto", max_model_len: int | None = None
) -> Decoder:
    """`directory`: of a checkpoint; or a GGUF file. `max_model_len`: None: the model's own."""
    config = Checkpoint(directory, (), implementation=implementation).read_config()
    with torch.inference_mode():
        source = open_weights(directory, config, ops, "auto", None, lambda _: None)
        return load_decoder(config, ops, source, max_model_len or config.max_model_len)


def make_runner(
    directory: Path,
    block_size: int = 16,
    num_blocks: int = 96,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 256,
    ops: Ops | None = None,
    num_host_blocks: int = 0,
    grammars: Grammars | None = None,
    implementation: Implementation = "auto",
    max_model_len: int | None = None,
    pooling: PoolingKind = PoolingKind.LAST,
) -> ModelRunner:
    """On a CPU in float32, with the compiled operations where they are there."""
    ops = ops or create_ops(torch.device("cpu"), torch.float32)
    decoder = make_decoder(directory, ops, implementation, max_model_len)
    config = decoder.config
    with torch.inference_mode():
        pages = allocate_pages(config, num_blocks, block_size, ops.device, ops.dtype)
    shapes = {heads.shape(block_size, ops.dtype, pages[0].keys.dtype) for heads in config.attention}
    ops.prepare_attention(shapes, max_num_seqs, max_num_batched_tokens)
    limits = Limits(
        num_blocks, block_size, max_num_seqs, max_num_batched_tokens, max_model_len or config.max_model_len,
        config.vocab_size, num_host_blocks,
    )  # fmt: skip
    how = PoolingConfig(pooling)
    return create_decoder_runner(decoder, compose_device(ops), pages, limits, grammars=grammars, pooling=how)


@dataclass(slots=True)
class NearTies:
    """Greedy tokens that differ from the reference's where its two best logits are all but equal."""

    excused: int = 0
    compared: int = 0

    def check(self, model: transformers.PreTrainedModel, prompt: list[int], output: list[int]) -> None:
        """Every token of `output` must be the reference's likeliest after what stands before it."""
        self.check_tokens(reference_logits(model, prompt + output[:-1])[len(prompt) - 1 :], output)

    def check_tokens(self, logits: Tensor, output: list[int]) -> None:
        """`logits`: the reference's, [len(output), vocab]."""
        best = logits.topk(2).values
        gaps = (best[:, 0] - best[:, 1]).tolist()
        for index, (token, likeliest) in enumerate(zip(output, logits.argmax(-1).tolist(), strict=True)):
            self.compared += 1
            if token == likeliest:
                continue
            assert gaps[index] < 1e-4, f"output {index}: {token} instead of {likeliest}, which leads by {gaps[index]}"
            self.excused += 1

    def report(self) -> None:
        """To the sum of the whole run, once all is compared."""
        ALL_TIES.excused += self.excused
        ALL_TIES.compared += self.compared
        assert self.compared > 0
        assert self.excused <= self.compared // 100


ALL_TIES = NearTies()  # tests/conftest.py tells them


def reference_logits(model: transformers.PreTrainedModel, token_ids: list[int]) -> Tensor:
    """[len(token_ids), vocab]"""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits
