"""Reads weights in every format in which they are stored, and loads models with them."""

from services.worker.weights.decoder_loader import load_decoder
from services.worker.weights.encoder import encoder_parameters, open_encoder_weights
from services.worker.weights.encoder_loader import load_encoder
from services.worker.weights.kv_scales import KVScales, read_kv_scales
from services.worker.weights.open import open_weights

__all__ = [
    "KVScales",
    "encoder_parameters",
    "load_decoder",
    "load_encoder",
    "open_encoder_weights",
    "open_weights",
    "read_kv_scales",
]
