"""What every decoder has in common: its configuration, and the interface of its forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from services.worker.fields import Fields
from services.worker.models.build import Build
from services.worker.models.step import Step

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.models.rope import RopeConfig


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """The sizes that every decoder has. Each architecture adds its own fields."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int  # of the MLP, or of one expert
    max_model_len: int  # tokens, with RoPE scaling
    tie_word_embeddings: bool


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Attention of one layer, in architectures whose layers differ in it."""

    sliding_window: int | None  # tokens that a query sees, itself included; None: all before it
    rope: RopeConfig | None  # None: the layer does not see positions


class Network(Protocol):
    """A decoder's forward pass. Stateless: keys and values are in the pages of each step."""

    def hidden_states(self, step: Step) -> Tensor:
        """Writes keys and values of all tokens, and returns the final hidden states [n, hidden] of `step.wanted`."""
        ...

    def logits(self, hidden_states: Tensor) -> Tensor:
        """[n, hidden] -> [n, vocab], both in the operations' type."""
        ...


ConfigT = TypeVar("ConfigT", bound=NetworkConfig)


@dataclass(frozen=True, slots=True)
class Architecture(Generic[ConfigT]):
    """One entry of config.json's `architectures`, or several that differ only in their configuration."""

    read: Callable[[str, Fields], ConfigT]  # from the architecture's name and config.json; raises ModelError
    create: Callable[[ConfigT, Build], Network]
    code: str = "Quire's own code"  # whose code computes the forward pass, for the log
    # Prefix of names that some checkpoints leave out: they hold the network without its head. Empty: the first part of
    # the names of all weights but the output layer's.
    base: str = ""
    unused: tuple[str, ...] = ()  # starts or ends of the names of stored tensors that it does not need
    generates: bool = True  # whether it has an output layer; without one, it serves embeddings or scores only
