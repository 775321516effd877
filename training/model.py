"""A Llama decoder, written for training: the same arithmetic and parameter names as LlamaForCausalLM.

transformers is not used to train because this is faster on a CPU: only answer tokens reach the output layer,
and there is nothing between the matrix products that a small model would notice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The sizes of a model. Embeddings are tied."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    head_dim: int = 32
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = (batch, length, -1, self.shape.head_dim)
        q = _rotate(self.q_proj(x).view(heads).transpose(1, 2), cos, sin)  # [batch, heads, length, head_dim]
        k = _rotate(self.k_proj(x).view(heads).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        groups = self.shape.num_heads // self.shape.num_kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        # Written out because torch's own attention spends three times as long on the way back on a CPU.
        scores = q * self.shape.head_dim**-0.5 @ k.mT  # [batch, heads, length, length]
        scores = scores + torch.full((length, length), -torch.inf, dtype=scores.dtype).triu(1)
        mixed = torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Everything up to the last norm. Its parameters are those of LlamaForCausalLM's `model`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # Layers start as the identity: what they write into the residual stream starts at zero.
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.0 if writes else 0.5 * shape.hidden_size**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Hidden states [batch, length, hidden_size] of token ids [batch, length]."""
        cos, sin = _angles(ids.shape[1], self.shape)
        x = self.embed_tokens(ids)
        if torch.is_autocast_enabled("cpu"):
            x, cos, sin = x.bfloat16(), cos.bfloat16(), sin.bfloat16()
        for layer in self.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.norm(x)
        return out


def _angles(length: int, shape: Shape) -> tuple[Tensor, Tensor]:
    frequencies = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = torch.outer(torch.arange(length), frequencies).repeat(1, 2)  # [length, head_dim]
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
