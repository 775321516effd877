"""The configuration of a decoder that transformers' code computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.worker.models.network import NetworkConfig

if TYPE_CHECKING:
    from services.worker.models.generic.trial import Trial


@dataclass(frozen=True, slots=True)
class GenericConfig(NetworkConfig):
    model_type: str
    where: str  # path of config.json, for errors
    values: Mapping[str, Any]  # of config.json
    trial: Trial
