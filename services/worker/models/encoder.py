"""An encoder that is ready to run: its configuration and its loaded network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.models.encoder_config import EncoderConfig
from services.worker.models.encoder_network import EncoderNetwork

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Encoder:
    """Keeps no state between calls."""

    config: EncoderConfig
    network: EncoderNetwork

    def scores(self, pooled: Tensor) -> Tensor:
        """See `EncoderNetwork`."""
        return self.network.scores(pooled)
