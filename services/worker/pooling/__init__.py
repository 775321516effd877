"""Pooling of hidden states into one vector per sequence: an embedding, or a classifier's scores."""

from services.worker.pooling.classifier import (
    ClassifierConfig,
    ScoreActivation,
    is_classifier,
    read_classifier,
    read_num_labels,
)
from services.worker.pooling.config import CHOICES, PoolingConfig, PoolingKind, read_pooling
from services.worker.pooling.max_tokens import read_max_tokens
from services.worker.pooling.params import ClassificationParams, PoolingParams, VectorParams
from services.worker.pooling.prompts import EmbeddingPrompts, read_prompts

__all__ = [
    "CHOICES",
    "ClassificationParams",
    "ClassifierConfig",
    "EmbeddingPrompts",
    "PoolingConfig",
    "PoolingKind",
    "PoolingParams",
    "ScoreActivation",
    "VectorParams",
    "is_classifier",
    "read_classifier",
    "read_max_tokens",
    "read_num_labels",
    "read_pooling",
    "read_prompts",
]
