"""Maps the layers of a checkpoint to their storage formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.worker.quantization.formats import DenseFormat, MatrixFormat
from services.worker.quantization.kv_scheme import KVCacheScheme

DENSE = DenseFormat()


class Selection(Protocol):
    def selects(self, layer: str) -> bool:
        """Returns whether a rule applies to a layer, named as in `model.layers.0.mlp.up_proj`."""
        ...


@dataclass(frozen=True, slots=True)
class BlocksBut:
    """Selects every linear layer in the transformer's blocks except those excluded by a part of their path. Never
    selects embeddings, and lm_head only with `output_layer`."""

    excluded: tuple[str, ...] = ()
    included: tuple[str, ...] = ()  # if not empty, only these are selected
    output_layer: bool = False

    def selects(self, layer: str) -> bool:
        if layer == "lm_head":
            return self.output_layer
        if not layer.startswith("model.layers.") or any(_is_part(name, layer) for name in self.excluded):
            return False
        return not self.included or any(_is_part(name, layer) for name in self.included)


@dataclass(frozen=True, slots=True)
class CheckpointQuantization:
    method: str  # value of --quantization
    rules: tuple[tuple[Selection, MatrixFormat], ...] = ()
    # Last parts of the names of ignored tensors: scales for values that stay unquantized here.
    unused: tuple[str, ...] = ()
    # Whether a layer may have a bias that its architecture lacks, provided that it is zero.
    zero_biases: bool = False
    # Form of keys and values that the checkpoint asks for; None: it asks for none.
    kv_cache: KVCacheScheme | None = None

    def format_of(self, layer: str) -> MatrixFormat:
        """Returns the format of a layer's matrix, by the first rule that selects it."""
        return next((form for selection, form in self.rules if selection.selects(layer)), DENSE)


def _is_part(name: str, layer: str) -> bool:
    """Returns whether `name` is the path of `layer` or whole parts of it: layers.1 does not match layers.10."""
    return f".{name}." in f".{layer}."
