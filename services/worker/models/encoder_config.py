"""An encoder's configuration: config.json of the BERT family, read once into one frozen object."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from services.worker.errors import ModelError
from services.worker.fields import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_SIZE,
    MAX_VOCAB_SIZE,
    Fields,
    reading,
)
from services.worker.json_files import read_json
from services.worker.models.config import GenerationDefaults, read_dtype
from services.worker.models.encoder_families import ENCODERS
from services.worker.pooling import read_max_tokens

# Supported values of hidden_act, and whether each means the tanh approximation of GELU.
_ACTIVATIONS = {"gelu": False, "gelu_new": True, "gelu_fast": True, "gelu_pytorch_tanh": True}


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    is_encoder: ClassVar[bool] = True

    architecture: str
    prefix: str  # prefix of the encoder's tensor names in checkpoints that also contain a head
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_layers: int
    num_positions: int  # rows of the position table
    position_offset: int  # row of the position table for a sequence's first token
    num_token_types: int
    layer_norm_eps: float
    tanh_gelu: bool
    max_model_len: int  # tokens
    dtype: str  # float type of the checkpoint: float32, bfloat16 or float16
    eos_token_ids: tuple[int, ...] = ()
    default_sampling: GenerationDefaults = field(default_factory=GenerationDefaults)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


def read_encoder_config(directory: Path) -> EncoderConfig | None:
    """Returns the configuration of an encoder; None for other models. Raises ModelError if Quire cannot run it."""
    path = directory / "config.json"
    config = Fields(read_json(path) or {}, str(path))
    architecture = next((name for name in config.texts("architectures") if name in ENCODERS), None)
    if architecture is None:
        return None
    with reading(path):
        return _parse(directory, architecture, config)


def _parse(directory: Path, architecture: str, config: Fields) -> EncoderConfig:
    family = ENCODERS[architecture]
    activation = config.text("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise ModelError(f"{directory} has {activation} activations; supported are {', '.join(_ACTIVATIONS)}")
    if config.text("position_embedding_type", "absolute") != "absolute":
        raise ModelError(f"{directory} has position embeddings that are not absolute, which is not supported")
    if config.flag("is_decoder") or config.flag("add_cross_attention"):
        raise ModelError(f"{directory} is set up as a decoder, which is not supported for {architecture}")
    num_positions = config.count("max_position_embeddings", MAX_POSITIONS)
    offset = config.count("pad_token_id", MAX_VOCAB_SIZE, 1, low=0) + 1 if family.positions_after_padding else 0
    if offset >= num_positions:
        raise config.wrong("max_position_embeddings", f"more than {offset:,}, the row of the first token")
    hidden_size, num_heads = config.count("hidden_size", MAX_SIZE), config.count("num_attention_heads", MAX_HEADS)
    if hidden_size % num_heads:
        raise config.wrong("num_attention_heads", f"a divisor of hidden_size, {hidden_size}")
    max_positions = num_positions - offset
    return EncoderConfig(
        architecture=architecture,
        prefix=family.prefix,
        vocab_size=config.count("vocab_size", MAX_VOCAB_SIZE),
        hidden_size=hidden_size,
        intermediate_size=config.count("intermediate_size", MAX_SIZE),
        num_heads=num_heads,
        num_layers=config.count("num_hidden_layers", MAX_LAYERS),
        num_positions=num_positions,
        position_offset=offset,
        num_token_types=config.count("type_vocab_size", MAX_VOCAB_SIZE, 2),
        layer_norm_eps=config.number("layer_norm_eps", 1e-12, above=0, high=1),
        tanh_gelu=_ACTIVATIONS[activation],
        max_model_len=min(max_positions, read_max_tokens(directory) or max_positions),
        dtype=read_dtype(config),
    )
