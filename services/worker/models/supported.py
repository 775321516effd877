"""Every architecture that runs here, and whose code computes it."""

from __future__ import annotations

from dataclasses import dataclass

from services.worker.models.bare import BARE
from services.worker.models.decoders.registry import DECODERS
from services.worker.models.encoders.registry import ENCODERS
from services.worker.models.generic import PROVEN
from services.worker.models.text_part import TEXT_PARTS

NATIVE, TRANSFORMERS, TEXT, BODY, ENCODER = "native", "transformers", "text", "body", "encoder"
# The meaning of each kind, for lists of architectures.
MEANINGS = {
    NATIVE: "a decoder that Quire's own code computes",
    TRANSFORMERS: "a decoder that transformers' code computes, on Quire's KV cache and with its matrix products",
    TEXT: "a model that takes images or audio, too; only its language model is loaded, and only text is served",
    BODY: "a decoder without output layer, for embeddings, or with a classifier in its place",
    ENCODER: "an encoder, for embeddings, or with a classifier",
}


@dataclass(frozen=True, slots=True, order=True)
class Supported:
    architecture: str  # as config.json names it
    kind: str  # a key of `MEANINGS`


def list_supported() -> list[Supported]:
    """Returns the architectures in the order of their names."""
    kinds = dict.fromkeys(PROVEN.values(), TRANSFORMERS) | dict.fromkeys(TEXT_PARTS, TEXT)
    kinds |= dict.fromkeys(BARE, BODY) | dict.fromkeys(DECODERS, NATIVE) | dict.fromkeys(ENCODERS, ENCODER)
    return sorted(Supported(architecture, kind) for architecture, kind in kinds.items())
