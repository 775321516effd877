"""The layers that networks are put together from."""

from services.worker.models.layers.attention import Attention, Norm, rows_by_head
from services.worker.models.layers.blocks import ParallelBlock, PostNormBlock, PreNormBlock, SandwichBlock
from services.worker.models.layers.llama_names import gated_mlp, output_projection, qkv_projections, tokens_and_head
from services.worker.models.layers.mlp import MLP, GatedMLP
from services.worker.models.layers.moe import MoE, Router, SoftmaxRouter
from services.worker.models.layers.norms import LayerNorm, LayerNormOfHeads, NormOverHeads, RMSNorm
from services.worker.models.layers.positions import PositionTable
from services.worker.models.layers.stack import Stack

__all__ = [
    "MLP",
    "Attention",
    "GatedMLP",
    "LayerNorm",
    "LayerNormOfHeads",
    "MoE",
    "Norm",
    "NormOverHeads",
    "ParallelBlock",
    "PositionTable",
    "PostNormBlock",
    "PreNormBlock",
    "RMSNorm",
    "Router",
    "SandwichBlock",
    "SoftmaxRouter",
    "Stack",
    "gated_mlp",
    "output_projection",
    "qkv_projections",
    "rows_by_head",
    "tokens_and_head",
]
