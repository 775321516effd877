"""Host memory for KV blocks: those of swapped-out sequences, and those of prefixes evicted from the device's memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic

from services.scheduler.core.prefix import OwnerT, Prefix


class HostPool(Generic[OwnerT]):
    """Slots of one block each. A swapped-out sequence's slots are taken until they are given back. The other slots keep
    prefixes that the device has evicted; of these, the least recently used is evicted first.

    The device makes the plans' copies in the order of the plans, so a plan can read a slot that the plan before it
    writes. A slot that a plan reads must not be reused before the plan's result was applied, so the slot is held until
    then.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._blank = list(range(num_slots - 1, -1, -1))
        self._cached: OrderedDict[int, Prefix[OwnerT]] = OrderedDict()
        # Slot -> (the prefix in it, number of plans that read it).
        self._held: dict[int, tuple[Prefix[OwnerT], int]] = {}
        # Called with a prefix that has lost its slot.
        self.on_evict: Callable[[Prefix[OwnerT]], None] = lambda _: None

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Number of slots that belong to sequences or that plans in flight read."""
        return self.num_slots - self.num_free

    @property
    def num_cached(self) -> int:
        return len(self._cached) + len(self._held)

    def take(self, count: int) -> list[int]:
        """Takes slots for a sequence's blocks. The caller must have checked that at least `count` slots are free."""
        return [self._take_one() for _ in range(count)]

    def give_back(self, slots: Iterable[int]) -> None:
        self._blank.extend(slots)

    def keep(self, prefix: Prefix[OwnerT]) -> int | None:
        """Takes a slot for a prefix that the device evicts. Returns None if no slot is free."""
        if not self.num_free:
            return None
        slot = self._take_one()
        self._cached[slot] = prefix
        return slot

    def hold(self, slot: int) -> None:
        """Protects a prefix's slot from eviction while a plan reads it. `settle` ends the protection."""
        if slot in self._held:
            prefix, num_plans = self._held[slot]
        else:
            prefix, num_plans = self._cached.pop(slot), 0
        self._held[slot] = prefix, num_plans + 1

    def settle(self, slot: int) -> None:
        """Undoes one `hold` of a slot. Call it for each plan that reads the slot, when the plan's result is applied. If
        no other plan holds the slot, it can be evicted again, and counts as the most recently used. Does nothing if
        `forget` has freed the slot meanwhile."""
        if slot not in self._held:
            return
        prefix, num_plans = self._held.pop(slot)
        if num_plans > 1:
            self._held[slot] = prefix, num_plans - 1
        else:
            self._cached[slot] = prefix

    def forget(self, slot: int) -> None:
        """Frees the slot of a prefix that is of no further use."""
        if self._cached.pop(slot, None) is None:
            del self._held[slot]
        self._blank.append(slot)

    def check_integrity(self, taken: Iterable[int]) -> None:
        """Asserts that every slot is exactly one of these: blank, occupied by a prefix, or in `taken`; and that each
        prefix in the pool refers to its slot. `taken`: the slots that hold the blocks of swapped-out sequences."""
        every_slot = sorted([*self._blank, *self._cached, *self._held, *taken])
        assert every_slot == list(range(self.num_slots)), "a host slot is lost or taken twice"
        assert all(prefix.host_slot == slot for slot, prefix in self._cached.items())
        assert all(prefix.host_slot == slot for slot, (prefix, _) in self._held.items())

    def _take_one(self) -> int:
        if self._blank:
            return self._blank.pop()
        slot, prefix = self._cached.popitem(last=False)
        self.on_evict(prefix)
        return slot
