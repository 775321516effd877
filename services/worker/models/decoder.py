"""The one decoder that all families run: attention and MLP with a residual stream, over a paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.architectures import ModelConfig
from services.worker.models.joined_linear import JoinedLinear
from services.worker.models.weights.source import WeightSource
from services.worker.ops import AttentionBatch, KVPages, Layer, Linear, Ops
from services.worker.quantization.kinds import join


class Decoder:
    """A decoder-only model with its weights, which are in the layout of `ops`. It keeps no state between calls; the
    caller passes the KV pages."""

    def __init__(self, config: ModelConfig, ops: Ops, source: WeightSource, max_positions: int) -> None:
        """Takes all weights from `source`, layer by layer. `max_positions`: maximum number of tokens in a sequence."""
        self.config = config
        self._ops = ops
        builder = _Builder(config, ops, source)
        self._embedding = builder.linear("model.embed_tokens")
        self._layers = [builder.layer(index) for index in range(len(config.layers))]
        self._norm = builder.vector("model.norm.weight")
        self._lm_head = self._embedding if config.tie_word_embeddings else builder.linear("lm_head")
        rope = config.rope.cos_sin(max_positions).to(ops.device)
        # Layers without RoPE use a rotation by zero: x · 1 - y · 0 is exactly x.
        plain = None if all(layer.use_rope for layer in config.layers) else _no_rotation(rope)
        self._rotations = [rope if plain is None or layer.use_rope else plain for layer in config.layers]
        self._run_layers = ops.fuse_layers(config, self._layers, self._rotations, self._norm) or self._run_one_by_one

    def hidden_states(
        self, token_ids: Tensor, batch: AttentionBatch, pages: Sequence[KVPages], sampled: Tensor
    ) -> Tensor:
        """Runs one step: writes the keys and values of all tokens to the pages, and returns the final hidden states of
        the tokens at the indices `sampled`, [n, hidden] in `ops.dtype`.

        token_ids: int64 [num_tokens]; pages: one per layer; sampled: int64 [n].
        """
        ops, config = self._ops, self.config
        residual = ops.embedding(token_ids, self._embedding)  # [num_tokens, hidden]
        x = ops.rms_norm(residual, self._layers[0].input_norm, config.rms_norm_eps)
        return self._run_layers(x, residual, batch, pages, sampled)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Returns logits [n, vocab] of hidden states [n, hidden], both in `ops.dtype`."""
        return self._lm_head(hidden_states)

    def _run_one_by_one(
        self, x: Tensor, residual: Tensor, batch: AttentionBatch, pages: Sequence[KVPages], sampled: Tensor
    ) -> Tensor:
        """See `interface.RunLayers`."""
        ops, config = self._ops, self.config
        for index, layer in enumerate(self._layers):
            x = self._attention(layer, x, self._rotations[index], batch, pages[index])
            if index == len(self._layers) - 1:
                # From here on only the sampled tokens are needed.
                x, residual = x[sampled], residual[sampled]
            x = ops.add_rms_norm(layer.output(x), residual, layer.post_attention_norm, config.rms_norm_eps)
            x = layer.down(ops.silu_mul(layer.gate_up(x)))
            following = self._layers[index + 1].input_norm if index + 1 < len(self._layers) else self._norm
            x = ops.add_rms_norm(x, residual, following, config.rms_norm_eps)
        return x

    def _attention(self, layer: Layer, x: Tensor, cos_sin: Tensor, batch: AttentionBatch, pages: KVPages) -> Tensor:
        """Writes keys and values, and returns the attention's output [num_tokens, num_heads * head_dim]."""
        ops, config = self._ops, self.config
        heads, kv_heads = config.num_heads, config.num_kv_heads
        qkv = layer.qkv(x).view(-1, heads + 2 * kv_heads, config.head_dim)
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = ops.rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = ops.rms_norm(k, layer.k_norm, config.rms_norm_eps)
        ops.rope_and_write_kv(q, k, v, cos_sin, batch, pages)
        return ops.paged_attention(q, batch, pages, config.head_dim**-0.5, layer.config.sliding_window)


class _Builder:
    """Builds layers with the weights of `source`. Projections that have the same input are joined into one matrix if
    their weights have the same format."""

    def __init__(self, config: ModelConfig, ops: Ops, source: WeightSource) -> None:
        self._config, self._ops, self._source = config, ops, source

    def layer(self, index: int) -> Layer:
        config, prefix = self._config, f"model.layers.{index}"
        fused = config.fused_projections
        qkv, gate_up = (("qkv",), ("gate_up",)) if fused else (("q", "k", "v"), ("gate", "up"))
        return Layer(
            config.layers[index],
            input_norm=self.vector(f"{prefix}.input_layernorm.weight"),
            qkv=self.linear(*(f"{prefix}.self_attn.{name}_proj" for name in qkv), bias=config.qkv_bias),
            q_norm=self.vector(f"{prefix}.self_attn.q_norm.weight") if config.qk_norm else None,
            k_norm=self.vector(f"{prefix}.self_attn.k_norm.weight") if config.qk_norm else None,
            output=self.linear(f"{prefix}.self_attn.o_proj", bias=config.output_bias),
            post_attention_norm=self.vector(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=self.linear(*(f"{prefix}.mlp.{name}_proj" for name in gate_up), bias=config.mlp_bias),
            down=self.linear(f"{prefix}.mlp.down_proj", bias=config.mlp_bias),
        )

    def linear(self, *names: str, bias: bool = False) -> Linear:
        weights = [self._source.weight(name) for name in names]
        biases = [self._source.vector(f"{name}.bias") for name in names] if bias else [None] * len(names)
        joined = join(weights)
        if joined is None:
            return JoinedLinear(list(map(self._ops.linear, weights, biases)))
        weights.clear()  # frees the parts before the joined matrix is packed
        return self._ops.linear(joined, torch.cat([bias for bias in biases if bias is not None]) if bias else None)

    def vector(self, name: str) -> Tensor:
        return self._source.vector(name).to(self._ops.device, self._ops.dtype, copy=True)


def _no_rotation(cos_sin: Tensor) -> Tensor:
    ones, zeros = torch.ones_like(cos_sin).chunk(2, dim=-1)[0], torch.zeros_like(cos_sin).chunk(2, dim=-1)[0]
    return torch.cat((ones, zeros), dim=-1)
