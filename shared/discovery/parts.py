"""The parts of a fleet, as a source of discovery knows them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    ROUTER = "router"
    SCHEDULER = "scheduler"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Part:
    """One running part. Static addresses and DNS know only the address, so the other fields are then empty."""

    # host:port or unix:/path, as gRPC takes it.
    address: str
    # Differs after every start of the process.
    boot_id: str = ""
    # Name of the model that the part serves. Routers serve every model, so theirs is empty.
    model: str = ""
    # Version of Quire that the part runs.
    version: str = ""
    # Number of tokens that fit into a worker's KV cache. 0 for other parts, for models without a KV cache, and for
    # workers of a release that does not register it.
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Parts:
    """All parts that a source knows at one moment, by address. `is_stale`: the source cannot be asked, or has lost its
    data, so some of these parts might be gone and new ones might be missing."""

    by_address: dict[str, Part]
    is_stale: bool = False

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset(self.by_address)
