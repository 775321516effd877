"""The models: one decoder for all decoder families, and one encoder. `weights/` reads their weights."""

from services.worker.models.decoder import Decoder
from services.worker.models.encoder import Encoder
from services.worker.models.weights.encoder import encoder_parameters, open_encoder_weights
from services.worker.models.weights.kv_scales import KVScales, read_kv_scales
from services.worker.models.weights.open import open_weights

__all__ = [
    "Decoder",
    "Encoder",
    "KVScales",
    "encoder_parameters",
    "open_encoder_weights",
    "open_weights",
    "read_kv_scales",
]
