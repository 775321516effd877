"""Decoders whose checkpoints have no output layer: for embeddings (E5-Mistral: Wang et al., 2024; Qwen3-Embedding:
Zhang et al., 2025), or with a classifier in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from services.worker.fields import Fields
from services.worker.models.build import Build, Matrix
from services.worker.models.decoders.registry import DECODERS
from services.worker.models.network import Architecture, Network, NetworkConfig
from services.worker.models.step import Step
from services.worker.pooling import read_num_labels

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class BareConfig(NetworkConfig):
    body: NetworkConfig  # in the architecture's own class
    num_labels: int  # outputs of the classifier; 0: there is none


class BareDecoder:
    """See `Network`. Its logits mean nothing: the checkpoint's embeddings stand in for the output layer."""

    def __init__(self, body: Network, config: BareConfig, build: Build) -> None:
        self._body = body
        self._scores = (
            build.linear(Matrix("score", config.num_labels, config.hidden_size)) if config.num_labels else None
        )

    def hidden_states(self, step: Step) -> Tensor:
        """See `Network`."""
        return self._body.hidden_states(step)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """See `Network`."""
        return self._body.logits(hidden_states)

    def scores(self, hidden_states: Tensor) -> Tensor:
        """[n, hidden] -> [n, num_labels], both in the operations' type. Only for a classifier."""
        assert self._scores is not None
        return self._scores(hidden_states)


def _read(full: str, architecture: str, config: Fields) -> BareConfig:
    """`full`: the same architecture with an output layer."""
    body = replace(DECODERS[full].read(full, config), tie_word_embeddings=True)
    common = {field.name: getattr(body, field.name) for field in fields(NetworkConfig)}
    return BareConfig(**common, body=body, num_labels=read_num_labels(architecture, config))


def _create(full: str, config: BareConfig, build: Build) -> Network:
    return BareDecoder(DECODERS[full].create(config.body, build), config, build)


def _architecture(full: str) -> Architecture[BareConfig]:
    kind = DECODERS[full]
    return Architecture(
        partial(_read, full), partial(_create, full), generates=False, base=kind.base or "model.", unused=kind.unused
    )


# Their embeddings can stand in for the output layer.
_FAMILIES = ("Gemma", "Gemma2", "Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen3", "Qwen3Moe")
BARE: Mapping[str, Architecture[Any]] = {
    f"{family}{head}": _architecture(f"{family}ForCausalLM")
    for family in _FAMILIES
    for head in ("Model", "ForSequenceClassification")
}


def find_bare(architecture: str) -> Architecture[Any] | None:
    """Returns how to run a decoder without output layer; None for others."""
    return BARE.get(architecture)
