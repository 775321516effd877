"""The layers that networks are put together from."""

from services.worker.models.layers.attention import Attention, Norm, rows_by_head
from services.worker.models.layers.encoder_stack import Embeddings, EncoderStack, PostNormBlock
from services.worker.models.layers.full_attention import FullAttention, full_form
from services.worker.models.layers.mlp import MLP, GatedMLP
from services.worker.models.layers.moe import MoE, Router, SoftmaxRouter
from services.worker.models.layers.norms import LayerNorm, RMSNorm
from services.worker.models.layers.positions import PositionTable
from services.worker.models.layers.stack import Stack

__all__ = [
    "MLP",
    "Attention",
    "Embeddings",
    "EncoderStack",
    "FullAttention",
    "GatedMLP",
    "LayerNorm",
    "MoE",
    "Norm",
    "PositionTable",
    "PostNormBlock",
    "RMSNorm",
    "Router",
    "SoftmaxRouter",
    "Stack",
    "full_form",
    "rows_by_head",
]
