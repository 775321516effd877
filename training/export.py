"""Writes a trained model in the Hugging Face format, with the weights in bfloat16."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from training.model import Decoder
from training.tokenizer import BEGIN, CONTEXT, END, PAD, save, special_id


def export(model: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Write configuration, weights and tokenizer to `folder`.

    bfloat16 loses nothing that training had: its matrix products saw the weights rounded to it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shape = model.shape
    begin, end, pad = (special_id(tokenizer, token) for token in (BEGIN, END, PAD))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": begin,
        "eos_token_id": end,
        "pad_token_id": pad,
        "torch_dtype": "bfloat16",
    }
    # BEGIN ends a reply too: a model that starts a new chat by itself has nothing more to say in this one.
    generation = {
        "bos_token_id": begin,
        "eos_token_id": [end, begin],
        "pad_token_id": pad,
        # Low enough for right answers; which of its stories it tells may still vary.
        "do_sample": True,
        "temperature": 0.2,
        "max_new_tokens": 256,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    weights = {f"model.{name}": p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # save_file leaves it to its owner alone
    save(tokenizer, folder)
