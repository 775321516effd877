"""The layers that networks are put together from."""

from services.worker.models.layers.alibi import alibi_slopes
from services.worker.models.layers.attention import Attention, Norm, rows_by_group, rows_by_head
from services.worker.models.layers.blocks import (
    BranchNormBlock,
    ParallelBlock,
    PostNormBlock,
    PreNormBlock,
    SandwichBlock,
)
from services.worker.models.layers.classifier import Classifier, relu, tanh
from services.worker.models.layers.encoder_stack import Embeddings, EncoderBlock, EncoderStack
from services.worker.models.layers.full_attention import FullAttention, full_form
from services.worker.models.layers.group_router import ExpertGroups, GroupRouter
from services.worker.models.layers.head import TiedHead
from services.worker.models.layers.latent_attention import LatentAttention, LowRankProjection
from services.worker.models.layers.llama_names import gated_mlp, output_projection, qkv_projections, tokens_and_head
from services.worker.models.layers.mlp import MLP, GatedMLP
from services.worker.models.layers.moe import ChosenSoftmaxRouter, MoE, Router, SoftmaxRouter
from services.worker.models.layers.norms import LayerNorm, LayerNormOfHeads, NoNorm, NormOverHeads, RMSNorm
from services.worker.models.layers.positions import PositionTable, Sinusoids
from services.worker.models.layers.stack import Block, Stack
from services.worker.models.layers.token_embedding import TokenEmbedding

__all__ = [
    "MLP",
    "Attention",
    "Block",
    "BranchNormBlock",
    "ChosenSoftmaxRouter",
    "Classifier",
    "Embeddings",
    "EncoderBlock",
    "EncoderStack",
    "ExpertGroups",
    "FullAttention",
    "GatedMLP",
    "GroupRouter",
    "LatentAttention",
    "LayerNorm",
    "LayerNormOfHeads",
    "LowRankProjection",
    "MoE",
    "NoNorm",
    "Norm",
    "NormOverHeads",
    "ParallelBlock",
    "PositionTable",
    "PostNormBlock",
    "PreNormBlock",
    "RMSNorm",
    "Router",
    "SandwichBlock",
    "Sinusoids",
    "SoftmaxRouter",
    "Stack",
    "TiedHead",
    "TokenEmbedding",
    "alibi_slopes",
    "full_form",
    "gated_mlp",
    "output_projection",
    "qkv_projections",
    "relu",
    "rows_by_group",
    "rows_by_head",
    "tanh",
    "tokens_and_head",
]
