"""An encoder's configuration: config.json of the BERT family, read once into one frozen object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.worker.errors import ModelError
from services.worker.models.config import GenerationDefaults, read_json
from services.worker.models.families import ENCODERS
from services.worker.pooling.max_tokens import read_max_tokens

# Whether GELU is computed in its tanh form.
_ACTIVATIONS = {"gelu": False, "gelu_new": True, "gelu_fast": True, "gelu_pytorch_tanh": True}


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    architecture: str
    prefix: str  # of tensors in checkpoints that hold a head beside the encoder
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_layers: int
    num_positions: int  # rows of the position table
    position_offset: int  # that of a sequence's first token
    num_token_types: int
    layer_norm_eps: float
    tanh_gelu: bool
    max_model_len: int  # tokens
    dtype: str  # of the checkpoint: float32, bfloat16 or float16
    eos_token_ids: tuple[int, ...] = ()
    default_sampling: GenerationDefaults = field(default_factory=GenerationDefaults)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


def read_encoder_config(directory: Path) -> EncoderConfig | None:
    """None for what is no encoder's directory. Raises ModelError, with a sentence, for one that cannot be run."""
    config = read_json(directory / "config.json") or {}
    architecture = next((name for name in config.get("architectures") or [] if name in ENCODERS), None)
    if architecture is None:
        return None
    try:
        return _parse(directory, architecture, config)
    except KeyError as error:
        raise ModelError(f"{directory / 'config.json'} lacks {error}") from error


def _parse(directory: Path, architecture: str, config: Mapping[str, Any]) -> EncoderConfig:
    family = ENCODERS[architecture]
    activation = config.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise ModelError(f"{directory} has {activation} activations; supported are {', '.join(_ACTIVATIONS)}")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise ModelError(f"{directory} has positions of another kind than absolute ones, which is not supported")
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise ModelError(f"{directory} is set up as a decoder, which is not supported for {architecture}")
    offset = config.get("pad_token_id", 1) + 1 if family.positions_after_padding else 0
    max_positions = config["max_position_embeddings"] - offset
    return EncoderConfig(
        architecture=architecture,
        prefix=family.prefix,
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_heads=config["num_attention_heads"],
        num_layers=config["num_hidden_layers"],
        num_positions=config["max_position_embeddings"],
        position_offset=offset,
        num_token_types=config.get("type_vocab_size", 2),
        layer_norm_eps=config.get("layer_norm_eps", 1e-12),
        tanh_gelu=_ACTIVATIONS[activation],
        max_model_len=min(max_positions, read_max_tokens(directory) or max_positions),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )
