"""The models: what config.json says of them, and their forward passes.

Imports no torch, so that a model's sizes can be read at once. `services/worker/weights` loads them.
"""

from services.worker.models.build import Build, Matrix, Place
from services.worker.models.config import GenerationDefaults, ModelConfig, parse_model_config, read_model_config
from services.worker.models.declare import Declaration, Parameter
from services.worker.models.decoder import Decoder
from services.worker.models.decoders.llama import LlamaConfig
from services.worker.models.encoder import Encoder
from services.worker.models.encoder_config import EncoderConfig, read_encoder_config
from services.worker.models.encoder_network import EncoderStep
from services.worker.models.rope import RopeConfig
from services.worker.models.size import kv_bytes_per_token, num_active_parameters, num_parameters, weight_bytes
from services.worker.models.step import InputEmbeddings
from services.worker.models.supported import MEANINGS, Supported, list_supported
from services.worker.models.unsupported_types import find_unsupported, letters

__all__ = [
    "MEANINGS",
    "Build",
    "Declaration",
    "Decoder",
    "Encoder",
    "EncoderConfig",
    "EncoderStep",
    "GenerationDefaults",
    "InputEmbeddings",
    "LlamaConfig",
    "Matrix",
    "ModelConfig",
    "Parameter",
    "Place",
    "RopeConfig",
    "Supported",
    "find_unsupported",
    "kv_bytes_per_token",
    "letters",
    "list_supported",
    "num_active_parameters",
    "num_parameters",
    "parse_model_config",
    "read_encoder_config",
    "read_model_config",
    "weight_bytes",
]
