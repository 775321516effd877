"""An encoder's configuration: config.json, read once into one frozen object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from services.worker.fields import Fields, reading
from services.worker.json_files import read_json
from services.worker.models.build import Build
from services.worker.models.config import GenerationDefaults
from services.worker.models.declare import Declaration, declare
from services.worker.models.encoder_network import EncoderArchitecture, EncoderNetwork, EncoderNetworkConfig
from services.worker.models.encoders.registry import ENCODERS
from services.worker.models.reading import check_positions
from services.worker.models.stored_dtype import read_dtype
from services.worker.pooling import ClassifierConfig, read_classifier, read_max_tokens
from services.worker.quantization import CheckpointQuantization, read_quantization


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    is_encoder: ClassVar[bool] = True
    generates: ClassVar[bool] = False

    architecture: str
    network: EncoderNetworkConfig  # sizes, in the architecture's own class
    declaration: Declaration  # weights
    max_model_len: int  # tokens: the network's, or fewer if sentence-transformers' files say so
    dtype: str  # float type of the checkpoint: float32, bfloat16 or float16
    quantization: CheckpointQuantization | None = None
    classifier: ClassifierConfig | None = None  # None: the model gives embeddings
    eos_token_ids: tuple[int, ...] = ()
    default_sampling: GenerationDefaults = field(default_factory=GenerationDefaults)

    # Whose code computes the forward pass, as text for the log.
    runs_with: ClassVar[str] = "Quire's own code, as an encoder"

    @property
    def vocab_size(self) -> int:
        return self.network.vocab_size

    @property
    def hidden_size(self) -> int:
        return self.network.hidden_size

    @property
    def parameters(self) -> Mapping[str, tuple[int, ...]]:
        return self.declaration.parameters

    @property
    def base(self) -> str:
        """Prefix of names that some checkpoints leave out."""
        return self.kind.base

    def own_name(self, stored: str) -> str:
        """Returns the network's name of a tensor in the checkpoint. See `ModelConfig.own_name`."""
        return stored

    @property
    def kind(self) -> EncoderArchitecture[Any]:
        return ENCODERS[self.architecture]

    def create_network(self, build: Build) -> EncoderNetwork:
        return self.kind.create(self.network, build)


def read_encoder_config(directory: Path) -> EncoderConfig | None:
    """Returns the configuration of an encoder; None for other models. Raises ModelError if Quire cannot run it."""
    path = directory / "config.json"
    config = Fields(read_json(path) or {}, str(path))
    architecture = next((name for name in config.texts("architectures") if name in ENCODERS), None)
    if architecture is None:
        return None
    with reading(path):
        kind = ENCODERS[architecture]
        network = kind.read(architecture, config)
        check_positions(config, network.max_model_len)
        return EncoderConfig(
            architecture=architecture,
            network=network,
            declaration=declare(kind.create, network, config.where),
            max_model_len=min(network.max_model_len, read_max_tokens(directory) or network.max_model_len),
            dtype=read_dtype(config, directory),
            quantization=read_quantization(str(path), config.values),
            classifier=read_classifier(architecture, config),
        )
