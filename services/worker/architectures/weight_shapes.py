"""Names and shapes of a decoder's weights. Names are those of transformers."""

from __future__ import annotations

from collections.abc import Iterator

from services.worker.architectures.config import ModelConfig

Parameter = tuple[str, tuple[int, ...]]


def parameters(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each weight by its name, in the order in which a decoder loads the weights.

    The name of a matrix is its layer's name (`model.layers.0.mlp.up_proj`), because quantized matrices are stored as
    several tensors. Norms and biases have their tensor's name (`model.norm.weight`).
    """
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (config.vocab_size, config.hidden_size)}
    for index in range(len(config.layers)):
        shapes |= _block(config, f"model.layers.{index}")
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes["lm_head"] = (config.vocab_size, config.hidden_size)
    return shapes


def _block(config: ModelConfig, prefix: str) -> Iterator[Parameter]:
    hidden, inner, fused = config.hidden_size, config.intermediate_size, config.fused_projections
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv = {"qkv_proj": queries + 2 * keys} if fused else {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    gate_up = {"gate_up_proj": 2 * inner} if fused else {"gate_proj": inner, "up_proj": inner}
    yield f"{prefix}.input_layernorm.weight", (hidden,)
    yield from _projections(attention, qkv, hidden, config.qkv_bias)
    if config.qk_norm:
        yield f"{attention}.q_norm.weight", (config.head_dim,)
        yield f"{attention}.k_norm.weight", (config.head_dim,)
    yield from _projections(attention, {"o_proj": hidden}, queries, config.output_bias)
    yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
    yield from _projections(mlp, gate_up, hidden, config.mlp_bias)
    yield from _projections(mlp, {"down_proj": hidden}, inner, config.mlp_bias)


def _projections(prefix: str, outputs: dict[str, int], inputs: int, bias: bool) -> Iterator[Parameter]:
    """Yields names and shapes of the matrices, and then of the biases, of projections that share one input. `outputs`:
    the number of outputs of each projection; `inputs`: the size of the input.
    """
    for name, rows in outputs.items():
        yield f"{prefix}.{name}", (rows, inputs)
    if bias:
        for name, rows in outputs.items():
            yield f"{prefix}.{name}.bias", (rows,)
