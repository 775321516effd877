"""Which layers of a checkpoint are stored in which format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.worker.quantization.formats import DenseFormat, MatrixFormat
from services.worker.quantization.kv_scheme import KVCacheScheme

DENSE = DenseFormat()


class Selection(Protocol):
    def selects(self, layer: str) -> bool:
        """Whether a rule is for a layer, named as in `model.layers.0.mlp.up_proj`."""
        ...


@dataclass(frozen=True, slots=True)
class BlocksBut:
    """Every linear layer of the transformer's blocks but those that are named, by a part of their path: neither
    embeddings nor, unless `output_layer`, lm_head."""

    excluded: tuple[str, ...] = ()
    included: tuple[str, ...] = ()  # if any are named, these alone
    output_layer: bool = False

    def selects(self, layer: str) -> bool:
        if layer == "lm_head":
            return self.output_layer
        if not layer.startswith("model.layers.") or any(_is_part(name, layer) for name in self.excluded):
            return False
        return not self.included or any(_is_part(name, layer) for name in self.included)


@dataclass(frozen=True, slots=True)
class CheckpointQuantization:
    method: str  # as --quantization calls it
    rules: tuple[tuple[Selection, MatrixFormat], ...] = ()
    # Last parts of tensors' names that nothing reads: scales for what stays unquantized here.
    unused: tuple[str, ...] = ()
    # Whether a layer may bring a bias that its architecture lacks, as long as it is zero.
    zero_biases: bool = False
    # How it wants keys and values kept; None: it does not say.
    kv_cache: KVCacheScheme | None = None

    def format_of(self, layer: str) -> MatrixFormat:
        """How the matrix of a layer is stored, by the first rule that is for it."""
        return next((form for selection, form in self.rules if selection.selects(layer)), DENSE)


def _is_part(name: str, layer: str) -> bool:
    """Whether `name` is `layer`'s path or whole parts of it: layers.1 is none of layers.10."""
    return f".{name}." in f".{layer}."
