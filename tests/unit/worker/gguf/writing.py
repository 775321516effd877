"""GGUF files of small models, converted from transformers' as llama.cpp's own converter does it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file

from services.worker.json_files import read_json

Kind = gguf.GGMLQuantizationType
_VALUE_TYPES = {
    int: gguf.GGUFValueType.UINT32,
    float: gguf.GGUFValueType.FLOAT32,
    str: gguf.GGUFValueType.STRING,
}
_BLOCK = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
}


def write_gguf(
    path: Path, checkpoint: Path, kinds: Mapping[str, Kind] | Kind = Kind.F32, **metadata: Any
) -> dict[str, NDArray[np.float32]]:
    """Of a checkpoint in Hugging Face's format. `kinds`: the type of matrices, of all or by parts of their names (else
    float32). `metadata`: further settings, by keys without the architecture's name, dots as double underscores.
    Returns the matrices as the file has them, dequantized and in transformers' order of rows."""
    config = read_json(checkpoint / "config.json") or {}
    architecture = config["model_type"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    for key, value in metadata.items():
        writer.add_key_value(f"{architecture}.{key.replace('__', '.')}", value, _VALUE_TYPES[type(value)])
    _add_tokenizer(writer, checkpoint, config)
    kept = {}
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        data = tensor.float().numpy()
        permuted = data
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            permuted = pairs_together(data, heads if "q_proj" in name else kv_heads)
        kind = kinds if isinstance(kinds, Kind) else next((k for part, k in kinds.items() if part in name), Kind.F32)
        if data.ndim == 1:
            kind = Kind.F32
        quantized = gguf.quants.quantize(permuted, kind)
        writer.add_tensor(ggml_name(name), quantized, raw_dtype=kind)
        # Rounding is row by row, so that it may as well be done in the other order.
        kept[name] = gguf.quants.dequantize(gguf.quants.quantize(data, kind), kind)
    finish(writer)
    return kept


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def set_tensor(file: Path, name: str, data: NDArray[Any], kind: Kind = Kind.F32) -> None:
    """Writes a file anew with one tensor more, or another one of that name."""
    reader = gguf.GGUFReader(file)
    architecture = "general.architecture"
    writer = gguf.GGUFWriter(file.with_suffix(".new"), reader.fields[architecture].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != architecture:
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        if tensor.name != name:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.add_tensor(name, data, raw_dtype=kind)
    finish(writer)
    file.with_suffix(".new").rename(file)


def pairs_together(data: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Row j and row j + head_dim / 2 of each head become rows 2 j and 2 j + 1."""
    out = np.empty_like(data)
    size = len(data) // heads
    for head in range(heads):
        for j in range(size // 2):
            out[head * size + 2 * j] = data[head * size + j]
            out[head * size + 2 * j + 1] = data[head * size + size // 2 + j]
    return out


def ggml_name(name: str) -> str:
    layer, suffix = name.rsplit(".", 1)
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if layer in whole:
        return f"{whole[layer]}.{suffix}"
    _, _, index, part = layer.split(".", 3)
    short = part.split(".")[-1].removesuffix("_proj")
    prefix = "ffn" if part.startswith("mlp") else "attn"
    return f"blk.{index}.{_BLOCK.get(part, f'{prefix}_{short}')}.{suffix}"


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, config: Mapping[str, Any]) -> None:
    """Sentencepiece's form, as Llama's have it: each token's score is its rank among merges."""
    eos = config["eos_token_id"]
    writer.add_eos_token_id(eos[0] if isinstance(eos, list) else eos)
    if not (checkpoint / "tokenizer.json").exists():
        return
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    rank = {"".join(merge): index for index, merge in enumerate(tokenizer["model"]["merges"])}
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    special = {token["id"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(rank.get(token, len(rank))) for token in tokens])
    types = [
        gguf.TokenType.CONTROL
        if index in special
        else gguf.TokenType.BYTE
        if token.startswith("<0x")
        else gguf.TokenType.NORMAL
        for index, token in enumerate(tokens)
    ]
    writer.add_token_types(types)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")
