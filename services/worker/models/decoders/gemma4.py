"""Gemma 4 (Gemma Team, 2026): Gemma 3's layers, with heads whose size depends on the type of layer.

Scores are not scaled, values are normed, too, and layers without a window rotate only a part of each head. Small models
add an embedding of the token in each layer, and their last layers read the keys and values of earlier ones. Large
models take the values from the projection of the keys. One of them has experts beside each MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from services.worker.models.build import Build, Matrix
from services.worker.models.decoders.gemma4_config import Gemma4Config, LayerConfig, read
from services.worker.models.layers import GatedMLP, RMSNorm, SoftmaxRouter, Stack
from services.worker.models.network import Architecture
from services.worker.models.step import Step
from services.worker.ops import AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor


class Gemma4(Stack):
    """See `Network`."""

    def __init__(self, config: Gemma4Config, build: Build) -> None:
        vocab, hidden = config.vocab_size, config.hidden_size
        self._cap = config.logits_cap
        inside = build.inside("model")
        scale = build.filled(1, hidden**0.5)  # transformers, too, rounds the factor to the type of the embeddings
        tokens = inside.linear(Matrix("embed_tokens", vocab, hidden))
        self._inputs = LayerInputs(config, inside) if config.input_size else None
        self._layers = [Block(config, c, inside.inside(f"layers.{i}")) for i, c in enumerate(config.layers)]
        norm = RMSNorm(inside, "norm", hidden, config.norm_eps)
        head = tokens if config.tie_word_embeddings else build.linear(Matrix("lm_head", vocab, hidden))
        super().__init__(build.ops, tokens, (), norm, head, scale)

    def hidden_states(self, step: Step) -> Tensor:
        """See `Network`."""
        x = self.embed(step)
        inputs = None if self._inputs is None else self._inputs(x, step)
        for index, layer in enumerate(self._layers):
            x = layer(x, None if inputs is None else inputs[:, index], step)
        return self._norm(x[step.wanted])

    def logits(self, hidden_states: Tensor) -> Tensor:
        """See `Network`."""
        logits = super().logits(hidden_states)
        return logits if self._cap is None else self._ops.soft_cap(logits, self._cap)


class LayerInputs:
    """An input of each layer: the mean of a projection of the embedding and of an embedding of the layer's own."""

    def __init__(self, config: Gemma4Config, build: Build) -> None:
        self._ops, self._shape = build.ops, (-1, len(config.layers), config.input_size)
        size = len(config.layers) * config.input_size
        self._tokens = build.linear(Matrix("embed_tokens_per_layer", config.input_vocab_size, size))
        self._scale, self._padding_id = build.filled(1, config.input_size**0.5), config.padding_id
        self._projection = build.linear(Matrix("per_layer_model_projection", size, config.hidden_size))
        self._projection_scale = config.hidden_size**-0.5
        self._norm = RMSNorm(build, "per_layer_projection_norm", config.input_size, config.norm_eps)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, num_layers, input_size]. `x`: the embeddings. A token whose embedding is
        given has the layers' own embeddings of the padding token."""
        ids, given = step.token_ids, step.embeddings
        ids = ids if given is None else ids.index_fill(0, given.at, self._padding_id)
        own = (self._ops.embedding(ids, self._tokens) * self._scale).view(self._shape)
        projected = self._norm((self._projection(x) * self._projection_scale).view(self._shape))
        return (projected + own) * 2**-0.5


class Block:
    def __init__(self, config: Gemma4Config, layer: LayerConfig, build: Build) -> None:
        hidden = config.hidden_size

        def norm(name: str) -> RMSNorm:
            return RMSNorm(build, name, hidden, config.norm_eps)

        self._norm_1, self._post_norm_1 = norm("input_layernorm"), norm("post_attention_layernorm")
        self._attention = Attention(config, layer, build.inside("self_attn"))
        self._norm_2, self._post_norm_2 = norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm")
        self._mlp = GatedMLP(
            build.inside("mlp"),
            (Matrix("gate_proj", layer.mlp_size, hidden), Matrix("up_proj", layer.mlp_size, hidden)),
            Matrix("down_proj", hidden, layer.mlp_size),
            config.activation,
        )
        self._experts = Experts(config, build) if config.num_experts else None
        self._gated_input = GatedInput(config, build) if config.input_size else None
        self._scalar = build.vector("layer_scalar", 1)

    def __call__(self, x: Tensor, layer_input: Tensor | None, step: Step) -> Tensor:
        x = x + self._post_norm_1(self._attention(self._norm_1(x), step))
        mixed = self._mlp(self._norm_2(x))
        if self._experts is not None:
            mixed = self._experts(x, mixed)
        x = x + self._post_norm_2(mixed)
        if self._gated_input is not None and layer_input is not None:
            x = x + self._gated_input(x, layer_input)
        return x * self._scalar


class Attention:
    """Attention with normed values. It reads the pages of an earlier layer if it has no keys and values of its own."""

    def __init__(self, config: Gemma4Config, layer: LayerConfig, build: Build) -> None:
        dim, hidden, bias = layer.head_dim, config.hidden_size, config.attention_bias
        self._ops = build.ops
        self._heads = Heads(config.num_heads, layer.num_kv_heads, dim, dim)
        self._rotation = build.rotation(layer.rope)
        self._form = AttentionForm(1.0, sliding_window=layer.sliding_window)
        self._q = build.linear(Matrix("q_proj", config.num_heads * dim, hidden, bias))
        self._q_norm = RMSNorm(build, "q_norm", dim, config.norm_eps)
        if layer.shared_pages is None:
            self._pages = build.attention(self._heads)
            self._kv: KeysAndValues | None = KeysAndValues(config, layer, build)
        else:
            self._pages, self._kv = layer.shared_pages, None
        self._output = build.linear(Matrix("o_proj", hidden, config.num_heads * dim, bias))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]"""
        ops, heads, pages = self._ops, self._heads, step.pages[self._pages]
        q = self._q_norm(self._q(x).view(-1, heads.num_heads, heads.key_dim))
        if self._kv is None:
            ops.rope(q, self._rotation, step.batch)
        else:
            k, v = self._kv(x)
            ops.rope_and_write_kv(q, k, v, self._rotation, step.batch, pages)
        return self._output(ops.paged_attention(q, step.batch, pages, self._form))


class KeysAndValues:
    def __init__(self, config: Gemma4Config, layer: LayerConfig, build: Build) -> None:
        self._shape = (-1, layer.num_kv_heads, layer.head_dim)
        self._size = layer.num_kv_heads * layer.head_dim
        names = ("k_proj",) if layer.values_are_keys else ("k_proj", "v_proj")
        self._projection = build.linear(
            *(Matrix(name, self._size, config.hidden_size, config.attention_bias) for name in names)
        )
        self._k_norm = RMSNorm(build, "k_norm", layer.head_dim, config.norm_eps)
        self._v_norm = _norm_without_weight(build, layer.head_dim, config.norm_eps)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[num_tokens, hidden] -> [num_tokens, num_kv_heads, head_dim] each"""
        projected = self._projection(x)
        # The last part is the whole of one projection, or the second half of two.
        k, v = projected[:, : self._size], projected[:, -self._size :]
        return self._k_norm(k.view(self._shape)), self._v_norm(v.view(self._shape))


class Experts:
    """Experts beside the MLP. The router and the experts each norm the input in their own way."""

    def __init__(self, config: Gemma4Config, build: Build) -> None:
        hidden, inner, count, router = (
            config.hidden_size,
            config.expert_size,
            config.num_experts,
            build.inside("router"),
        )

        def norm(name: str) -> RMSNorm:
            return RMSNorm(build, name, hidden, config.norm_eps)

        self._norm, self._post_norm, self._post_mlp_norm = (
            norm(f"{name}_layernorm{suffix}")
            for name, suffix in (("pre_feedforward", "_2"), ("post_feedforward", "_2"), ("post_feedforward", "_1"))
        )
        self._router_norm = _norm_without_weight(build, hidden, config.norm_eps)
        self._router_scale, self._root = router.vector("scale", hidden), hidden**-0.5
        self._gate = router.linear(Matrix("proj", count, hidden))
        self._router = SoftmaxRouter(config.num_chosen, normalizes=True)
        self._weight_of_expert = router.vector("per_expert_scale", count)
        self._experts = build.experts(
            [[matrix] for matrix in Matrix("experts.gate_up_proj", 2 * inner, hidden).stacked(count)],
            Matrix("experts.down_proj", hidden, inner).stacked(count),
            config.activation,
            config.num_chosen,
        )

    def __call__(self, x: Tensor, mixed: Tensor) -> Tensor:
        """[num_tokens, hidden] -> the same shape. `mixed`: the MLP's output."""
        expert_ids, weights = self._router(self._gate(self._router_norm(x) * self._router_scale * self._root))
        weights = weights * self._weight_of_expert[expert_ids]
        chosen = self._experts(self._norm(x), expert_ids, weights.to(x.dtype))
        return self._post_mlp_norm(mixed) + self._post_norm(chosen)


class GatedInput:
    """projection(activation(gate(x)) · input), normed"""

    def __init__(self, config: Gemma4Config, build: Build) -> None:
        self._ops, self._activation = build.ops, config.activation
        self._gate = build.linear(Matrix("per_layer_input_gate", config.input_size, config.hidden_size))
        self._projection = build.linear(Matrix("per_layer_projection", config.hidden_size, config.input_size))
        self._norm = RMSNorm(build, "post_per_layer_input_norm", config.hidden_size, config.norm_eps)

    def __call__(self, x: Tensor, layer_input: Tensor) -> Tensor:
        """[num_tokens, hidden] and [num_tokens, input_size] -> [num_tokens, hidden]"""
        gate = self._ops.activation(self._gate(x), self._activation)
        return self._norm(self._projection(gate * layer_input))


def _norm_without_weight(build: Build, size: int, eps: float) -> Callable[[Tensor], Tensor]:
    weight = build.filled(size, 1.0)
    return lambda x: build.ops.rms_norm(x, weight, eps)


ARCHITECTURES: Mapping[str, Architecture[Gemma4Config]] = dict.fromkeys(
    ("Gemma4ForCausalLM", "Gemma4UnifiedForCausalLM"),
    Architecture(
        read,
        Gemma4,
        # Checkpoints hold keys and values of layers that read those of earlier ones.
        unused=tuple(f".self_attn.{name}.weight" for name in ("k_proj", "v_proj", "k_norm", "v_norm")),
    ),
)
