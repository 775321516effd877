"""Finds computed blocks again, by the tokens in them and before them.

A prefix is a full block of tokens, together with all tokens before it. Its key is (the prefix before it, its tokens).
A look-up compares the tokens themselves, so it never mistakes one prefix for another, as a chain of hashes could. Where
ids do not tell what a token stands for, its content's hash is a part of the key (`content.py`). The cache is a radix
tree (compare Zheng et al., SGLang, 2024, section 3) with a block of tokens per edge, kept in a single dictionary.

A prefix is announced when a sequence starts to compute it, so that other sequences that need it can wait instead of
computing it, too. It is published when the result of the step that computed it is applied. From then on, other
sequences can use its block, until the block is handed out again. A block is evicted after all blocks that follow it,
because a sequence that holds a block also holds the blocks before it, and gives its blocks back in reverse order.

The life of a prefix:

    unknown --announce--> announced --publish--> on device --evict--> on host --start to load--> loading
                              |                      |                   |                          |
                           abandon          retract, or evict          evict                 publish: on device
                              |             without a host slot          |                   abandon: on host
                              v                      v                   v
                           unknown                unknown             unknown

A prefix has an owner while it is announced or loading: the sequence that computes it or copies it to the device. A
prefix that was loaded stays on the host, too, until its slot there is evicted.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic

from services.scheduler.core.block_pool import BlockPool
from services.scheduler.core.content import Block, Content, TokensWithContents
from services.scheduler.core.host_pool import HostPool
from services.scheduler.core.prefix import NOWHERE, OwnerT, Prefix


class PrefixCache(Generic[OwnerT]):
    """Finds prefixes in the blocks of one pool, and in host memory if the pool has evicted them."""

    def __init__(self, pool: BlockPool, host: HostPool[OwnerT], block_size: int) -> None:
        self._pool = pool
        self._host = host
        # Maps each host slot to the id of the block to copy to it. These are the blocks of evicted prefixes and of
        # swapped-out sequences. The next plan must copy them to the host before anything else.
        self.saves: dict[int, int] = {}
        # Changes when a prefix becomes known or is forgotten. While the version is the same, a look-up with the same
        # tokens has the same result.
        self.version = 0
        self._block_bytes = 4 * block_size
        self._prefixes: dict[tuple[Hashable, Block], Prefix[OwnerT]] = {}
        self._by_block: dict[int, Prefix[OwnerT]] = {}
        pool.on_evict = self._on_evict
        host.on_evict = self._on_host_evict

    def __len__(self) -> int:
        """Number of prefixes on the device."""
        return len(self._by_block)

    def match(
        self, token_ids: bytes, salt: Hashable, max_blocks: int, contents: tuple[Content, ...] = ()
    ) -> list[Prefix[OwnerT]]:
        """Returns the longest known prefix of `token_ids` (u32) with these contents, as one Prefix per block, at most
        `max_blocks`. Each Prefix is on the device, in host memory, or about to be computed by its owner.
        """
        tokens = TokensWithContents(token_ids, contents) if contents else token_ids
        size = self._block_bytes
        prefixes = self._prefixes
        found: list[Prefix[OwnerT]] = []
        parent = salt
        for start in range(0, max_blocks * size, size):
            prefix = prefixes.get((parent, tokens[start : start + size]))
            if prefix is None:
                break
            found.append(prefix)
            parent = prefix
        return found

    def announce(
        self, token_ids: bytes, parent: Hashable, owner: OwnerT, contents: tuple[Content, ...] = (), first: int = 0
    ) -> list[Prefix[OwnerT]]:
        """Returns the prefixes of all full blocks of `token_ids`, and enters those that the cache does not know yet.
        `owner`: the sequence that will compute the new prefixes. `parent`: the prefix before `token_ids`, or the salt
        if there is none. `contents`: of the whole sequence, in which `first` tokens are before `token_ids`."""
        tokens = TokensWithContents(token_ids, contents, first) if contents else token_ids
        size = self._block_bytes
        prefixes = self._prefixes
        announced = []
        for start in range(0, len(token_ids) - size + 1, size):
            key = (parent, tokens[start : start + size])
            prefix = prefixes.get(key)
            if prefix is None:
                prefix = prefixes[key] = Prefix(key, owner)
                self.version += 1
            announced.append(prefix)
            parent = prefix
        return announced

    def publish(self, prefix: Prefix[OwnerT], block_id: int) -> None:
        """Assigns a computed block, which the caller holds, to a prefix, so that other sequences can use the block. The
        block is not assigned if another block of the same prefix was published first, or if the prefix before this
        prefix was forgotten, because no look-up could then reach this prefix.
        """
        prefix.owner = None
        before = prefix.key[0]
        if isinstance(before, Prefix) and self._prefixes.get(before.key) is not before:
            self._drop_if_nowhere(prefix)
        elif not prefix.is_computed and self._prefixes.setdefault(prefix.key, prefix) is prefix:
            self.version += 1
            prefix.block_id = block_id
            self._by_block[block_id] = prefix
            self._pool.keep(block_id)

    def abandon(self, prefix: Prefix[OwnerT]) -> None:
        """Takes note that the prefix's owner will neither compute the prefix nor load it to the device."""
        prefix.owner = None
        self._drop_if_nowhere(prefix)

    def retract(self, prefix: Prefix[OwnerT]) -> None:
        """Removes a prefix from the cache, both on the device and on the host."""
        prefix.owner = None
        if prefix.is_computed:
            del self._by_block[prefix.block_id]
            self._pool.forget(prefix.block_id)
            prefix.block_id = NOWHERE
        if prefix.is_on_host:
            self._host.forget(prefix.host_slot)
            prefix.host_slot = NOWHERE
        self._drop_if_nowhere(prefix)

    def clear(self) -> None:
        """Forgets every prefix except those that a sequence is computing or loading."""
        for prefix in [prefix for prefix in self._prefixes.values() if prefix.is_computed or prefix.is_on_host]:
            owner = prefix.owner
            self.retract(prefix)
            if owner is not None:
                prefix.owner = owner
                self._prefixes[prefix.key] = prefix
        self.version += 1

    def check_integrity(self) -> None:
        """Asserts that prefixes and blocks refer to each other, and that every prefix is on the device, is on the host
        or has an owner."""
        for key, prefix in self._prefixes.items():
            assert prefix.key is key or prefix.key == key
            assert prefix.is_computed == (self._by_block.get(prefix.block_id) is prefix)
            assert prefix.is_computed or prefix.is_on_host or prefix.owner is not None, "a prefix is nowhere"
        for block_id, prefix in self._by_block.items():
            assert prefix.block_id == block_id
            assert self._prefixes.get(prefix.key) is prefix

    def _on_evict(self, block_id: int) -> None:
        prefix = self._by_block.pop(block_id)
        prefix.block_id = NOWHERE
        if not prefix.is_on_host:
            slot = self._host.keep(prefix)
            if slot is not None:
                prefix.host_slot = slot
                self.saves[slot] = block_id
        self._drop_if_nowhere(prefix)

    def _on_host_evict(self, prefix: Prefix[OwnerT]) -> None:
        prefix.host_slot = NOWHERE
        self._drop_if_nowhere(prefix)

    def _drop_if_nowhere(self, prefix: Prefix[OwnerT]) -> None:
        is_somewhere = prefix.is_computed or prefix.is_on_host or prefix.owner is not None
        if not is_somewhere and self._prefixes.get(prefix.key) is prefix:
            del self._prefixes[prefix.key]
            self.version += 1
