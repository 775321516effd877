"""Reads weights in every format in which they are stored, and loads models with them."""

from services.worker.weights.kv_scales import KVScales, read_kv_scales
from services.worker.weights.loader import load_decoder, load_encoder
from services.worker.weights.open import open_weights

__all__ = [
    "KVScales",
    "load_decoder",
    "load_encoder",
    "open_weights",
    "read_kv_scales",
]
