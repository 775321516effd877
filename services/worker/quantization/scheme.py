"""Maps the layers of a checkpoint to their storage formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.worker.quantization.formats import DenseFormat, MatrixFormat
from services.worker.quantization.kv_scheme import KVCacheScheme

DENSE = DenseFormat()
_OUTPUT_LAYERS = ("lm_head", "embed_out", "output_projection")
_ROUTERS = ("gate", "router", "shared_expert_gate")


class Selection(Protocol):
    def selects(self, layer: str) -> bool:
        """Returns whether the selection contains a layer. `layer`: its name, such as `model.layers.0.mlp.up_proj`."""
        ...


@dataclass(frozen=True, slots=True)
class BlocksBut:
    """Selects the linear layers in the transformer's blocks, except those whose path contains a name in `excluded`.
    Selects the output layer only if `output_layer` is True, and never selects embeddings. Never selects routers, as
    vLLM, because config.json of DeepSeek-V3 and of many GPTQ checkpoints does not say that they are in floats."""

    excluded: tuple[str, ...] = ()
    included: tuple[str, ...] = ()  # if not empty, a layer's path must contain one of these names
    output_layer: bool = False

    def selects(self, layer: str) -> bool:
        if is_output_layer(layer):
            return self.output_layer
        if not is_in_block(layer) or is_router(layer) or any(_is_part(name, layer) for name in self.excluded):
            return False
        return not self.included or any(_is_part(name, layer) for name in self.included)


@dataclass(frozen=True, slots=True)
class CheckpointQuantization:
    method: str  # value of --quantization
    rules: tuple[tuple[Selection, MatrixFormat], ...] = ()
    # Last parts of the names of tensors that Quire does not read, such as static scales of activations.
    unused: tuple[str, ...] = ()
    # Whether the checkpoint may have biases for layers that have no bias in the model's architecture. All values of
    # these biases must be 0.
    zero_biases: bool = False
    # Quantization of keys and values that the checkpoint asks for; None: the checkpoint asks for none.
    kv_cache: KVCacheScheme | None = None

    def format_of(self, layer: str) -> MatrixFormat:
        """Returns the format of a layer's matrix: the format of the first rule that selects the layer, or floats if no
        rule does."""
        return next((form for selection, form in self.rules if selection.selects(layer)), DENSE)


def is_output_layer(name: str) -> bool:
    """Returns whether a layer, or a tensor, is the output layer or a part of it."""
    return name.partition(".")[0] in _OUTPUT_LAYERS


def is_in_block(layer: str) -> bool:
    """Returns whether a layer is in one of the transformer's blocks, which have numbers in every architecture's names:
    `model.layers.0.mlp.up_proj`, `transformer.h.0.mlp.c_fc`. Embeddings and the output layer are in none."""
    return any(part.isdigit() for part in layer.split("."))


def is_router(layer: str) -> bool:
    """Returns whether a layer chooses experts: `mlp.gate`, `mlp.gate.wg`, `router.proj`."""
    return any(_is_part(name, layer) for name in _ROUTERS)


def _is_part(name: str, layer: str) -> bool:
    """Returns whether whole parts of the path `layer` are equal to `name`: layers.1 does not match layers.10."""
    return f".{name}." in f".{layer}."
