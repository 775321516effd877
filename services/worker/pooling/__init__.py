"""Pooling of hidden states into one vector per sequence."""

from services.worker.pooling.config import CHOICES, PoolingConfig, PoolingKind, read_pooling
from services.worker.pooling.max_tokens import read_max_tokens
from services.worker.pooling.params import PoolingParams

__all__ = ["CHOICES", "PoolingConfig", "PoolingKind", "PoolingParams", "read_max_tokens", "read_pooling"]
