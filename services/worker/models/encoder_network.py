"""What every encoder has in common: its configuration, and the interface of its forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from services.worker.fields import Fields
from services.worker.models.build import Build
from services.worker.pooling import PoolingKind

if TYPE_CHECKING:
    from torch import Tensor

    from services.worker.ops import WholeSequences


@dataclass(frozen=True, slots=True)
class EncoderNetworkConfig:
    """The sizes that every encoder has. Each architecture adds its own fields."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int  # of the MLP
    max_model_len: int  # tokens
    num_labels: int = field(default=0, kw_only=True)  # outputs of its classifier; 0: it has none
    pooling: PoolingKind = field(default=PoolingKind.CLS, kw_only=True)  # what the classifier was trained with


@dataclass(frozen=True, slots=True)
class EncoderStep:
    """Inputs of one forward pass."""

    token_ids: Tensor  # int64 [num_tokens]
    token_types: Tensor  # int64 [num_tokens]: 1 for the tokens of a pair's second text, else 0 (BERT, section 3)
    batch: WholeSequences


class EncoderNetwork(Protocol):
    """An encoder's forward pass. Stateless."""

    def hidden_states(self, step: EncoderStep) -> Tensor:
        """Returns the final hidden states of all tokens, [num_tokens, hidden] in the operations' type."""
        ...

    def scores(self, pooled: Tensor) -> Tensor:
        """Returns the classifier's outputs [n, num_labels] for pooled hidden states [n, hidden], both in the
        operations' type. Only for a model that has a classifier."""
        ...


EncoderConfigT = TypeVar("EncoderConfigT", bound=EncoderNetworkConfig)


@dataclass(frozen=True, slots=True)
class EncoderArchitecture(Generic[EncoderConfigT]):
    """One entry of config.json's `architectures`, or several that differ only in their configuration."""

    read: Callable[[str, Fields], EncoderConfigT]  # from the architecture's name and config.json; raises ModelError
    create: Callable[[EncoderConfigT, Build], EncoderNetwork]
    base: str = ""  # prefix of names that some checkpoints leave out: they hold the network without its head
    unused: tuple[str, ...] = ()  # starts or ends of the names of stored tensors that the network does not need
