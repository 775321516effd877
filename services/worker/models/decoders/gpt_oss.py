"""gpt-oss (OpenAI, 2025): attention with a sink per head, every second layer within a window, and a mixture of experts
with a clamped gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.worker.fields import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import (
    Attention,
    Block,
    ChosenSoftmaxRouter,
    MoE,
    PreNormBlock,
    RMSNorm,
    Stack,
    output_projection,
    qkv_projections,
    tokens_and_head,
)
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import MAX_EXPERTS, read_heads, read_windows, require_number
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.ops import Activation, AttentionForm, Heads

_POSITIONS = 131_072
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


@dataclass(frozen=True, slots=True)
class GptOssConfig(NetworkConfig):
    heads: Heads
    norm_eps: float
    rope: RopeConfig
    attention_bias: bool
    num_experts: int
    num_chosen: int
    windows: tuple[int | None, ...]  # of each layer


class GptOss(Stack):
    """See `Network`."""

    def __init__(self, config: GptOssConfig, build: Build) -> None:
        tokens, head = tokens_and_head(config, build)
        blocks = [_block(config, window, build.inside(f"model.layers.{i}")) for i, window in enumerate(config.windows)]
        norm = RMSNorm(build, "model.norm", config.hidden_size, config.norm_eps)
        super().__init__(build.ops, tokens, blocks, norm, head)


def _block(config: GptOssConfig, window: int | None, build: Build) -> Block:
    hidden, heads, bias = config.hidden_size, config.heads, config.attention_bias
    norm_1, norm_2 = (
        RMSNorm(build, name, hidden, config.norm_eps) for name in ("input_layernorm", "post_attention_layernorm")
    )
    inside = build.inside("self_attn")
    sinks = inside.wide_vector("sinks", heads.num_heads)
    attention = Attention(
        inside,
        heads,
        qkv_projections(heads, hidden, has_bias=bias),
        output_projection(heads, hidden, has_bias=bias),
        AttentionForm(heads.key_dim**-0.5, sliding_window=window, sinks=sinks),
        build.rotation(config.rope),
    )
    return PreNormBlock(norm_1, attention, norm_2, _experts(config, build.inside("mlp")))


def _experts(config: GptOssConfig, build: Build) -> MoE:
    hidden, inner, num_experts = config.hidden_size, config.intermediate_size, config.num_experts
    gate_up = Matrix(
        "experts.gate_up_proj",
        2 * inner,
        hidden,
        has_bias=True,
        is_transposed=True,
        rows=lambda: (*range(0, 2 * inner, 2), *range(1, 2 * inner, 2)),  # stored: gate, up, gate, up, ...
    )
    down = Matrix("experts.down_proj", hidden, inner, has_bias=True, is_transposed=True)
    return MoE(
        build,
        Matrix("router", num_experts, hidden, has_bias=True),
        ChosenSoftmaxRouter(config.num_chosen),
        [[matrix] for matrix in gate_up.stacked(num_experts)],
        down.stacked(num_experts),
        Activation.CLAMPED_SILU,
    )


def read(architecture: str, config: Fields) -> GptOssConfig:
    """Raises ModelError for a configuration that the forward pass does not cover."""
    require_number(config, "swiglu_alpha", 1.702)
    require_number(config, "swiglu_limit", 7.0)
    hidden = config.count("hidden_size", MAX_SIZE, 2880)
    heads = read_heads(config, hidden, num_heads=64, num_kv_heads=8, head_dim=64)
    rope = read_rope(config, heads.key_dim, theta=150_000.0, parameters=_YARN, positions=_POSITIONS)
    num_layers = config.count("num_hidden_layers", MAX_LAYERS, 36)
    num_experts = config.count("num_local_experts", MAX_EXPERTS, config.count("num_experts", MAX_EXPERTS, 128))
    return GptOssConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 201_088),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size", MAX_SIZE, 2880),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS, _POSITIONS)),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        heads=heads,
        norm_eps=config.number("rms_norm_eps", 1e-5, above=0, high=1),
        rope=rope,
        attention_bias=config.flag("attention_bias", True),
        num_experts=num_experts,
        num_chosen=config.count("num_experts_per_tok", num_experts, 4),
        windows=read_windows(config, num_layers, default=128, interval=2),
    )


ARCHITECTURES: Mapping[str, Architecture[GptOssConfig]] = {"GptOssForCausalLM": Architecture(read, GptOss)}
