"""Prefixes of token sequences, each ending with a full block."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from services.scheduler.core.content import Block

NOWHERE = -1

OwnerT = TypeVar("OwnerT")


class Prefix(Generic[OwnerT]):
    """A full block of tokens, together with all tokens before it: the unit that sequences share."""

    __slots__ = ("block_id", "host_slot", "key", "owner")

    def __init__(self, key: tuple[Hashable, Block], owner: OwnerT) -> None:
        self.key = key
        self.block_id = NOWHERE
        self.host_slot = NOWHERE
        # The sequence that computes the prefix, or copies it to the device. None once the prefix is on the device, or
        # if the sequence ended or was preempted before that.
        self.owner: OwnerT | None = owner

    @property
    def is_computed(self) -> bool:
        """Whether the prefix is on the device."""
        return self.block_id != NOWHERE

    @property
    def is_on_host(self) -> bool:
        return self.host_slot != NOWHERE
