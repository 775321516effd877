"""The KV blocks of one worker group: which are free."""

from __future__ import annotations

from collections.abc import Iterable


class OutOfBlocksError(Exception):
    """Fewer blocks are free than were asked for. Callers check `num_free` first, so this is a bug in the scheduler."""


class BlockPool:
    """Hands out block ids 0 .. num_blocks - 1, the most recently freed first: its pages are the likeliest still in a
    cache.

    A block freed while a step that reads it is in flight may be handed out at once: steps run in order on one compute
    stream, so whatever still reads it runs before whatever writes it next. Any use on another stream or on the host
    would break that and must hold the block until it is done.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, now owned by the caller. Raises OutOfBlocksError and takes none if there are fewer."""
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks asked for, {len(self._free)} free")
        if count == 0:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        return taken

    def free(self, block_ids: Iterable[int]) -> None:
        """Takes back blocks that `allocate` returned."""
        self._free.extend(block_ids)

    def check_integrity(self, owned: Iterable[int]) -> None:
        """Asserts that the `owned` blocks and the free ones are each block exactly once."""
        every_block = sorted([*self._free, *owned])
        assert every_block == list(range(self.num_blocks)), "a block is lost or held twice"
