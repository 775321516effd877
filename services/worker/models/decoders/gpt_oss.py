"""gpt-oss (OpenAI, 2025): attention with a sink per head, every second layer within a window, and a mixture of experts
with a clamped gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.fields import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_SIZE, MAX_VOCAB_SIZE, Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.layers import Attention, ChosenSoftmaxRouter, MoE, RMSNorm, Stack
from services.worker.models.network import Architecture, NetworkConfig
from services.worker.models.reading import MAX_EXPERTS, require_number
from services.worker.models.rope import RopeConfig, read_rope
from services.worker.models.step import Step
from services.worker.ops import Activation, AttentionForm, Heads

if TYPE_CHECKING:
    from torch import Tensor

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
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    attention_bias: bool
    num_experts: int
    num_chosen: int
    windows: tuple[int | None, ...]  # of each layer


class GptOss(Stack):
    """See `Network`."""

    def __init__(self, config: GptOssConfig, build: Build) -> None:
        vocab, hidden = config.vocab_size, config.hidden_size
        inside = build.inside("model")
        tokens = inside.linear(Matrix("embed_tokens", vocab, hidden))
        blocks = [Block(config, window, inside.inside(f"layers.{i}")) for i, window in enumerate(config.windows)]
        norm = RMSNorm(inside, "norm", hidden, config.norm_eps)
        head = tokens if config.tie_word_embeddings else build.linear(Matrix("lm_head", vocab, hidden))
        super().__init__(build.ops, tokens, blocks, norm, head)


class Block:
    def __init__(self, config: GptOssConfig, window: int | None, build: Build) -> None:
        self._norm_1 = RMSNorm(build, "input_layernorm", config.hidden_size, config.norm_eps)
        self._attention = _attention(config, window, build.inside("self_attn"))
        self._norm_2 = RMSNorm(build, "post_attention_layernorm", config.hidden_size, config.norm_eps)
        self._experts = _experts(config, build.inside("mlp"))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self._attention(self._norm_1(x), step)
        return x + self._experts(self._norm_2(x))


def _attention(config: GptOssConfig, window: int | None, build: Build) -> Attention:
    heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim, config.head_dim)
    rows = {"q_proj": heads.num_heads, "k_proj": heads.num_kv_heads, "v_proj": heads.num_kv_heads}
    return Attention(
        build,
        heads,
        tuple(
            Matrix(name, count * config.head_dim, config.hidden_size, config.attention_bias)
            for name, count in rows.items()
        ),
        Matrix("o_proj", config.hidden_size, heads.num_heads * config.head_dim, config.attention_bias),
        AttentionForm(config.head_dim**-0.5, sliding_window=window, sinks=build.wide_vector("sinks", config.num_heads)),
        build.rotation(config.rope),
    )


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
    num_heads = config.count("num_attention_heads", MAX_HEADS, 64)
    num_kv_heads = config.count("num_key_value_heads", MAX_HEADS, 8)
    if num_heads % num_kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}")
    head_dim = config.count("head_dim", MAX_HEAD_DIM, 64)
    rope = read_rope(config, head_dim, theta=150_000.0, parameters=_YARN, positions=_POSITIONS)
    num_experts = config.count("num_local_experts", MAX_EXPERTS, config.count("num_experts", MAX_EXPERTS, 128))
    return GptOssConfig(
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE, 201_088),
        hidden_size=config.count("hidden_size", MAX_SIZE, 2880),
        intermediate_size=config.count("intermediate_size", MAX_SIZE, 2880),
        max_model_len=rope.max_model_len(config.count("max_position_embeddings", MAX_POSITIONS, _POSITIONS)),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=config.number("rms_norm_eps", 1e-5, above=0, high=1),
        rope=rope,
        attention_bias=config.flag("attention_bias", True),
        num_experts=num_experts,
        num_chosen=config.count("num_experts_per_tok", num_experts, 4),
        windows=_windows(config, config.count("num_hidden_layers", MAX_LAYERS, 36)),
    )


def _windows(config: Fields, num_layers: int) -> tuple[int | None, ...]:
    # As in transformers, a missing key means the default.
    is_given = "sliding_window" in config.values
    window = config.optional_count("sliding_window", MAX_POSITIONS) if is_given else 128
    windows = {"sliding_attention": window, "full_attention": None}
    types = config.items("layer_types", num_layers)
    if types is None:
        types = [("sliding_attention", "full_attention")[index % 2] for index in range(num_layers)]
    if any(kind not in list(windows) for kind in types):
        raise config.wrong("layer_types", "sliding_attention or full_attention for each layer")
    return tuple(windows[kind] for kind in types)


ARCHITECTURES: Mapping[str, Architecture[GptOssConfig]] = {"GptOssForCausalLM": Architecture(read, GptOss)}
