"""A decoder's configuration: config.json and generation_config.json, read once into one frozen object.

This module parses the files itself, because importing transformers takes seconds. Keys and defaults are those of
transformers' configuration classes.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from services.worker.errors import ModelError
from services.worker.fields import Fields, is_finite, reading, show
from services.worker.implementations import Implementation
from services.worker.json_files import read_json
from services.worker.models.bare import find_bare
from services.worker.models.build import Build
from services.worker.models.declare import Declaration, declare
from services.worker.models.decoders.registry import DECODERS
from services.worker.models.generic import find_generic
from services.worker.models.mistral_params import FILE as PARAMS
from services.worker.models.mistral_params import read_mistral_params
from services.worker.models.network import Architecture, Network, NetworkConfig
from services.worker.models.reading import check_positions, require
from services.worker.models.stored_dtype import read_dtype
from services.worker.models.text_part import TextPart, find_text_part, text_fields
from services.worker.models.unsupported_types import refuse_unsupported_type
from services.worker.ops import Heads
from services.worker.pooling import ClassifierConfig, read_classifier
from services.worker.quantization import CheckpointQuantization, is_output_layer, read_quantization
from shared.sampling_ranges import RANGES

logger = logging.getLogger(__name__)

MAX_TOKEN_IDS = 1024  # in a list of end tokens; real ones have up to ten


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling defaults from generation_config.json. None: the file has no value, or an invalid one."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    is_encoder: ClassVar[bool] = False

    architecture: str
    kind: Architecture[Any]
    network: NetworkConfig  # sizes, in the architecture's own class
    declaration: Declaration  # weights and pages
    eos_token_ids: tuple[int, ...]
    default_sampling: GenerationDefaults
    dtype: str  # float type of the checkpoint: float32, bfloat16 or float16
    quantization: CheckpointQuantization | None = None
    classifier: ClassifierConfig | None = None  # None: the model gives embeddings
    text_part: TextPart | None = None  # of a model that takes more than text: what of it is left out

    @property
    def vocab_size(self) -> int:
        return self.network.vocab_size

    @property
    def hidden_size(self) -> int:
        return self.network.hidden_size

    @property
    def max_model_len(self) -> int:
        """Tokens, with RoPE scaling."""
        return self.network.max_model_len

    @property
    def parameters(self) -> Mapping[str, tuple[int, ...]]:
        return self.declaration.parameters

    @property
    def attention(self) -> tuple[Heads, ...]:
        return self.declaration.attention

    @property
    def base(self) -> str:
        """Prefix of names that some checkpoints leave out; empty if the names have none in common."""
        parts = {f"{name.partition('.')[0]}." for name in self.parameters if not is_output_layer(name)}
        return self.kind.base or (parts.pop() if len(parts) == 1 else "")

    @property
    def runs_with(self) -> str:
        """Whose code computes the forward pass, and which parts of the model are left out, as text for the log."""
        return self.kind.code if self.text_part is None else f"{self.kind.code}; {self.text_part}"

    def own_name(self, stored: str) -> str | None:
        """Returns the network's name of a tensor in the checkpoint; None for one that the network does not need."""
        return stored if self.text_part is None else self.text_part.own_name(stored)

    @property
    def generates(self) -> bool:
        """Whether the model has an output layer."""
        return self.kind.generates

    def create_network(self, build: Build) -> Network:
        return self.kind.create(self.network, build)

    def with_network(self, network: NetworkConfig) -> ModelConfig:
        """Returns the configuration with other sizes."""
        return replace(self, network=network, declaration=declare(self.kind.create, network))


def read_model_config(directory: Path, implementation: Implementation = "auto") -> ModelConfig:
    """Returns the configuration of a decoder. Raises ModelError if Quire cannot run the model."""
    path = directory / "config.json"
    config = read_json(path)
    if config is None:
        path = directory / PARAMS
        config = read_mistral_params(directory)
    if config is None:
        raise ModelError(f"{directory} has no config.json, so it is no model directory")
    if not config.get("quantization_config"):
        # Older checkpoints of ModelOpt have their settings in a file of its own.
        modelopt = (read_json(directory / "hf_quant_config.json") or {}).get("quantization")
        if isinstance(modelopt, dict) and modelopt:
            config = config | {"quantization_config": {"quant_method": "modelopt"} | modelopt}
    with reading(path):
        return parse_model_config(
            directory, Fields(config, str(path)), read_json(directory / "generation_config.json") or {}, implementation
        )


def parse_model_config(
    path: Path, config: Fields, generation: Mapping[str, Any], implementation: Implementation = "auto"
) -> ModelConfig:
    """Returns the configuration of a decoder. `config`: values of config.json; `generation`: values of
    generation_config.json; `path`: the checkpoint's directory or GGUF file. Raises ModelError if Quire cannot run the
    model, or if a value is far beyond those of published models."""
    architectures = config.texts("architectures")
    text_part = find_text_part(architectures)
    if text_part is not None:
        config = text_fields(text_part, config)
        architectures = config.texts("architectures")
    found = next(((name, kind) for name in architectures if (kind := find_decoder(name, config, implementation))), None)
    if found is None:
        refuse_unsupported_type(config)
        given = ", ".join(architectures) or "a model without a named architecture"
        # Code of a checkpoint is never run: it could do anything.
        remote = ", and its own code (auto_map) is never run" if config.values.get("auto_map") else ""
        raise ModelError(f"{path} is {given}, which is not supported{remote}; `quire models` lists what is")
    architecture, decoder = found
    require(config, "is_causal", value=True)
    network = decoder.read(architecture, config)
    check_positions(config, network.max_model_len)
    eos = generation.get("eos_token_id", config.values.get("eos_token_id"))
    return ModelConfig(
        architecture=architecture,
        kind=decoder,
        network=network,
        declaration=declare(decoder.create, network, config.where),
        eos_token_ids=read_token_ids(path, "eos_token_id", eos, network.vocab_size),
        default_sampling=_defaults(path, generation),
        dtype=read_dtype(config, path),
        quantization=read_quantization(str(path), config.values),
        classifier=read_classifier(architecture, config),
        text_part=text_part,
    )


def find_decoder(architecture: str, config: Fields, implementation: Implementation) -> Architecture[Any] | None:
    """Returns how to run a decoder; None if `implementation` has no code for it."""
    native = None if implementation == "transformers" else DECODERS.get(architecture) or find_bare(architecture)
    if native is not None or implementation == "native":
        return native
    return find_generic(architecture, config, only_proven=implementation == "auto")


def read_token_ids(path: Path, name: str, value: object, vocab_size: int) -> tuple[int, ...]:
    """Returns the token ids in `value`, which is one id or a list of ids. Leaves out ids outside the vocabulary. Raises
    ModelError if an id is no integer, or if there are more than MAX_TOKEN_IDS."""
    ids: list[Any] = value if isinstance(value, list) else [] if value is None else [value]
    if len(ids) > MAX_TOKEN_IDS:
        raise ModelError(f"{path}: {name} is a list of {len(ids):,} token ids; expected at most {MAX_TOKEN_IDS:,}")
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise ModelError(f"{path}: {name} is {show(token_id)}; expected a token id or a list of them")
    unknown = [token_id for token_id in ids if not 0 <= token_id < vocab_size]
    if unknown:
        logger.warning(
            "%s: %s names token %s, but the model has %d tokens; the token is ignored",
            path,
            name,
            show(unknown[0]),
            vocab_size,
        )
    return tuple(token_id for token_id in ids if 0 <= token_id < vocab_size)


def _defaults(path: Path, generation: Mapping[str, Any]) -> GenerationDefaults:
    """Returns the valid sampling defaults in generation_config.json. Leaves out invalid ones with a warning, because
    every request that uses such a default would fail."""
    usable = {}
    for name in GenerationDefaults.__dataclass_fields__:
        value = generation.get(name)
        if value is None:
            continue
        if _in_range(name, value):
            usable[name] = value
        else:
            logger.warning(
                "%s: %s is %s, which is not a number %s; this default is ignored",
                path / "generation_config.json", name, show(value), RANGES[name],
            )  # fmt: skip
    return GenerationDefaults(**usable)


def _in_range(name: str, value: Any) -> bool:
    if not is_finite(value) or (name == "top_k" and not isinstance(value, int)):
        return False
    try:
        # Check the value as routers get it: protobuf sends float32, so a top_p of 1e-50 arrives as 0.
        rounded = value if name == "top_k" else struct.unpack("<f", struct.pack("<f", value))[0]
    except (struct.error, OverflowError):
        return False
    return rounded in RANGES[name]
