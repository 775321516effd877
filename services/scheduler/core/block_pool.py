"""The KV blocks of one worker group: how many sequences hold each, and which are free."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence


class OutOfBlocksError(Exception):
    """Fewer blocks are free than were asked for. Callers check `num_free` first, so this is a bug in the scheduler."""


class BlockPool:
    """Reference counts over block ids 0 .. num_blocks - 1. A block without holders is free.

    The life of a block:

                  allocate               keep
        blank ----------------> held ------------> held, kept <---- hold -----+
          ^                      |                   |                        |
          +--- release (last) ---+                   +-- release (last) --> reusable
          |                                                                   |   |
          +----------------------------- forget ------------------------------+   +-- allocate --> held
                                                                                   (on_evict first)

    `allocate` hands out blank blocks first, beginning with the most recently freed one, because that block's memory is
    the likeliest to be still in a processor cache. Then it hands out reusable blocks, whose content can still be
    found, beginning with the least recently used one. `forget` also turns a held, kept block into a block that is only
    held.

    A block that is freed while a step in flight reads it can be handed out at once: steps run in order on one compute
    stream, so the steps that still read it run before the step that writes it next. A use on another stream or on the
    host has no such order, so it must hold the block until it has ended.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_holders = [0] * num_blocks
        self._kept = [False] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._reusable: OrderedDict[int, None] = OrderedDict()
        # Called with the id of a block just before its content is lost.
        self.on_evict: Callable[[int], None] = lambda _: None

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._reusable)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_reusable(self) -> int:
        """Number of free blocks whose content can still be found."""
        return len(self._reusable)

    def num_holders(self, block_id: int) -> int:
        return self._num_holders[block_id]

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free blocks for the caller alone. Raises OutOfBlocksError and takes none if fewer are free."""
        if count == 0:
            return []
        blank = self._blank
        if count <= len(blank):
            taken = blank[-count:]
            del blank[-count:]
            taken.reverse()
        else:
            if count > self.num_free:
                raise OutOfBlocksError(f"{count} blocks asked for, {self.num_free} free")
            taken = blank[::-1]
            blank.clear()
            while len(taken) < count:
                block_id, _ = self._reusable.popitem(last=False)
                self._kept[block_id] = False
                self.on_evict(block_id)
                taken.append(block_id)
        for block_id in taken:
            self._num_holders[block_id] = 1
        return taken

    def hold(self, block_id: int) -> None:
        """Adds a holder to a block that is held or reusable."""
        if not self._num_holders[block_id]:
            del self._reusable[block_id]
        self._num_holders[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Removes one holder of each block. `block_ids`: a sequence's blocks, in order. The last block will be
        evicted first, because a block is of no use without the blocks before it.
        """
        for block_id in reversed(block_ids):
            self._num_holders[block_id] -= 1
            if not self._num_holders[block_id]:
                if self._kept[block_id]:
                    self._reusable[block_id] = None
                else:
                    self._blank.append(block_id)

    def keep(self, block_id: int) -> None:
        """Marks a held block as kept, because its content can be found again. After its last release, the block becomes
        reusable, not blank."""
        self._kept[block_id] = True

    def forget(self, block_id: int) -> None:
        """Undoes `keep`: the block's content will not be looked up again. A reusable block becomes blank."""
        self._kept[block_id] = False
        if not self._num_holders[block_id]:
            del self._reusable[block_id]
            self._blank.append(block_id)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Asserts that each block has as many holders as `held` has entries for it, and that the list of free blocks
        contains each block without entries exactly once, and no other block.
        """
        counts = Counter(held)
        assert [counts[block_id] for block_id in range(self.num_blocks)] == self._num_holders, "holders are miscounted"
        free = sorted([*self._blank, *self._reusable])
        assert free == [block_id for block_id in range(self.num_blocks) if not counts[block_id]], "a block is lost"
        assert all(self._kept[block_id] for block_id in self._reusable)
        assert not any(self._kept[block_id] for block_id in self._blank)
