"""The layers that networks are put together from."""

from services.worker.models.layers.attention import Attention, Norm, rows_by_head
from services.worker.models.layers.group_router import ExpertGroups, GroupRouter
from services.worker.models.layers.latent_attention import Compressed, LatentAttention
from services.worker.models.layers.mlp import MLP, GatedMLP
from services.worker.models.layers.moe import MoE, Router, SoftmaxRouter
from services.worker.models.layers.norms import LayerNorm, RMSNorm
from services.worker.models.layers.positions import PositionTable
from services.worker.models.layers.stack import Stack

__all__ = [
    "MLP",
    "Attention",
    "Compressed",
    "ExpertGroups",
    "GatedMLP",
    "GroupRouter",
    "LatentAttention",
    "LayerNorm",
    "MoE",
    "Norm",
    "PositionTable",
    "RMSNorm",
    "Router",
    "SoftmaxRouter",
    "Stack",
    "rows_by_head",
]
