"""The layers that networks are put together from."""

from services.worker.models.layers.alibi import alibi_slopes
from services.worker.models.layers.attention import Attention, Norm, rows_by_group, rows_by_head
from services.worker.models.layers.blocks import PostNormBlock, PreNormBlock
from services.worker.models.layers.head import TiedHead
from services.worker.models.layers.mlp import MLP, GatedMLP
from services.worker.models.layers.moe import MoE, Router, SoftmaxRouter
from services.worker.models.layers.norms import LayerNorm, RMSNorm
from services.worker.models.layers.positions import PositionTable, Sinusoids
from services.worker.models.layers.stack import Stack

__all__ = [
    "MLP",
    "Attention",
    "GatedMLP",
    "LayerNorm",
    "MoE",
    "Norm",
    "PositionTable",
    "PostNormBlock",
    "PreNormBlock",
    "RMSNorm",
    "Router",
    "Sinusoids",
    "SoftmaxRouter",
    "Stack",
    "TiedHead",
    "alibi_slopes",
    "rows_by_group",
    "rows_by_head",
]
