"""Tracks where every sequence's keys and values are, in blocks of the device or slots of the host, and which sequences
share them. Collects the copies that the next plan must make.

The device makes the copies in the order of the plans, and a plan's copies before the plan's forward pass. So a plan can
read a block or slot that an earlier plan writes, and a plan's forward pass can overwrite blocks that the same plan has
copied to the host.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic

from services.scheduler.core.block_pool import BlockPool
from services.scheduler.core.config import CoreConfig
from services.scheduler.core.content import TokensWithContents
from services.scheduler.core.host_pool import HostPool
from services.scheduler.core.prefix_cache import PrefixCache
from services.scheduler.core.request import RequestT
from services.scheduler.core.sequence import Sequence, SequencePrefix


@dataclass(slots=True)
class Moves(Generic[RequestT]):
    """The copies that one plan makes, the blocks to publish when the plan's result comes, and the host slots to release
    then."""

    swap_out: list[tuple[int, int]] = field(default_factory=list)  # (block, host slot)
    swap_in: list[tuple[int, int]] = field(default_factory=list)  # (host slot, block)
    copies: list[tuple[int, int]] = field(default_factory=list)  # (block, block)
    # (sequence, its wire id, its number of full blocks after this step), for each sequence that gets a full block in
    # this step.
    filled: list[tuple[Sequence[RequestT], int, int]] = field(default_factory=list)
    # Host slots that this plan reads. A settled slot holds a prefix, and keeps it. An emptied slot holds a block of a
    # sequence that returns to the device, and is free once the plan's result was applied.
    settled_slots: list[int] = field(default_factory=list)
    emptied_slots: list[int] = field(default_factory=list)


class KVMemory(Generic[RequestT]):
    def __init__(self, config: CoreConfig) -> None:
        self.pool = BlockPool(config.num_blocks)
        self.host: HostPool[Sequence[RequestT]] = HostPool(config.num_host_blocks)
        self.prefix_cache = PrefixCache(self.pool, self.host, config.block_size)
        self._block_size = config.block_size
        self._shares_prefixes = config.enable_prefix_caching
        # Running sequences of requests with several choices, by the request's group.
        self._groups: dict[Hashable, list[Sequence[RequestT]]] = {}
        # Result and key of the last look-up of prefixes for a request with several choices. They are kept because the
        # request's other choices have the same prompt and come next.
        self._found: list[SequencePrefix[RequestT]] = []
        self._found_for: tuple[Hashable, int, int] | None = None
        self._moves: Moves[RequestT] = Moves()

    # -- Blocks of a sequence ------------------------------------------------------------------------------------------

    def find(self, sequence: Sequence[RequestT]) -> list[SequencePrefix[RequestT]]:
        """Returns the known prefixes that a waiting sequence can use instead of computing their tokens."""
        if not self._shares(sequence):
            return []
        max_blocks = sequence.num_reusable_tokens // self._block_size
        request = sequence.request
        salt, contents = request.cache_salt, request.contents
        if request.group is None or sequence.num_output_tokens:
            return self.prefix_cache.match(sequence.token_ids.tobytes(), salt, max_blocks, contents)
        # `_found` is used again only while the cache has the same version. In another version, the cache might have
        # forgotten some of the found prefixes. It would not suffice to check that the cache still knows the last
        # prefix, because it can have forgotten an earlier one.
        found_for = (request.group, max_blocks, self.prefix_cache.version)
        if self._found_for != found_for:
            self._found = self.prefix_cache.match(sequence.token_ids.tobytes(), salt, max_blocks, contents)
            self._found_for = found_for
        return self._found.copy()

    def num_blocks_needed(self, sequence: Sequence[RequestT], found: list[SequencePrefix[RequestT]]) -> int:
        """Number of free blocks that a waiting sequence takes to compute all its known tokens. `found`: its prefixes in
        the cache. Their blocks are included unless another sequence holds them, because blocks without a holder count
        as free."""
        num_held = sum(prefix.is_computed and self.pool.num_holders(prefix.block_id) > 0 for prefix in found)
        return self.num_blocks_short(sequence, len(sequence.token_ids)) - num_held

    def num_blocks_short(self, sequence: Sequence[RequestT], num_tokens: int) -> int:
        """Number of blocks that a sequence must be given before it can compute `num_tokens` more tokens."""
        return -(-(sequence.num_computed_tokens + num_tokens) // self._block_size) - len(sequence.block_ids)

    def num_slots_free(self, sequence: Sequence[RequestT]) -> int:
        """Number of KV slots that a sequence can fill without a preemption: in its last block and in free blocks."""
        held = len(sequence.block_ids) + self.pool.num_free
        return held * self._block_size - sequence.num_computed_tokens

    def attach(self, sequence: Sequence[RequestT], found: list[SequencePrefix[RequestT]]) -> None:
        """Gives a starting sequence the blocks of the prefixes in `found`, and its swapped-out blocks. If another
        choice of its request has computed the prompt, also gives the sequence a copy of the prompt's last, partial
        block. Announces the prefixes that the sequence will compute.
        """
        num_here = num_computed(found)
        self._hold(sequence, found)
        sequence.num_computed_tokens = len(found) * self._block_size
        sequence.num_hit_blocks = sequence.num_published_blocks = num_here
        if self._shares(sequence):
            sequence.prefixes = found
            self._announce(sequence, len(sequence.token_ids))
        if sequence.host_slots:
            self._swap_in(sequence)
        self._note_filled(sequence, num_here * self._block_size)
        if sequence.request.group is not None:
            self._enter_group(sequence)

    def extend(self, sequence: Sequence[RequestT], num_tokens: int) -> list[int]:
        """Counts a sequence's next `num_tokens` tokens as computed. Returns the blocks that were added for them."""
        new_blocks = self.pool.allocate(self.num_blocks_short(sequence, num_tokens))
        sequence.block_ids += new_blocks
        sequence.num_computed_tokens += num_tokens
        self._note_filled(sequence, sequence.num_computed_tokens - num_tokens)
        return new_blocks

    def release(self, sequence: Sequence[RequestT]) -> list[SequencePrefix[RequestT]]:
        """Takes a running sequence's blocks away. Returns the prefixes that the sequence announced but will now not
        compute."""
        if sequence.request.group is not None:
            self._leave_group(sequence)
        abandoned = [
            prefix for prefix in sequence.prefixes[sequence.num_published_blocks :] if prefix.owner is sequence
        ]
        for prefix in abandoned:
            self.prefix_cache.abandon(prefix)
        self.pool.release(sequence.block_ids)
        sequence.block_ids = []
        sequence.prefixes = []
        sequence.num_hit_blocks = sequence.num_published_blocks = 0
        sequence.num_computed_tokens = 0
        return abandoned

    def publish(self, sequence: Sequence[RequestT], num_blocks: int) -> list[SequencePrefix[RequestT]]:
        """Publishes a sequence's first `num_blocks` blocks, so that other sequences can find them in the prefix cache.
        All tokens in these blocks must be computed and known. Returns the newly published prefixes."""
        if not self._shares(sequence):
            return []
        if num_blocks > len(sequence.prefixes):
            self._announce(sequence, num_blocks * self._block_size)
        published = sequence.prefixes[sequence.num_published_blocks : num_blocks]
        for index, prefix in enumerate(published, sequence.num_published_blocks):
            self.prefix_cache.publish(prefix, sequence.block_ids[index])
        sequence.num_published_blocks = num_blocks
        return published

    def retract(self, sequence: Sequence[RequestT]) -> None:
        """Removes from the cache the prefixes that a sequence computed. Call it if the sequence failed in the worker,
        because its blocks can be wrong."""
        for index in range(sequence.num_hit_blocks, sequence.num_published_blocks):
            prefix = sequence.prefixes[index]
            if prefix.block_id == sequence.block_ids[index]:
                self.prefix_cache.retract(prefix)

    # -- The host ------------------------------------------------------------------------------------------------------

    @staticmethod
    def num_tokens_to_save(sequence: Sequence[RequestT]) -> int:
        """Number of tokens whose keys and values are worth saving when a sequence is preempted. It includes tokens that
        steps in flight compute, because these steps run before the copy.
        """
        return min(sequence.num_computed_tokens, sequence.num_reusable_tokens)

    def swap_out(self, sequence: Sequence[RequestT]) -> None:
        """Has the next plan copy a running sequence's blocks to the host. The caller has checked that the host has
        room."""
        num_tokens = self.num_tokens_to_save(sequence)
        num_blocks = -(-num_tokens // self._block_size)
        sequence.host_slots = self.host.take(num_blocks)
        sequence.num_swapped_tokens = num_tokens
        self.prefix_cache.saves.update(zip(sequence.host_slots, sequence.block_ids, strict=False))

    def release_host_slots(self, sequence: Sequence[RequestT]) -> None:
        """Gives back a sequence's host slots, whose content is of no further use."""
        self.host.give_back(sequence.host_slots)
        sequence.host_slots = []

    # -- Plans ---------------------------------------------------------------------------------------------------------

    @property
    def must_move(self) -> bool:
        """Whether the next plan must copy something even if no sequence runs."""
        return bool(self.prefix_cache.saves)

    def take_moves(self) -> Moves[RequestT]:
        """Returns the copies for the plan that was just made, and begins to collect the copies for the next plan."""
        moves, self._moves = self._moves, Moves()
        moves.swap_out = [(block_id, slot) for slot, block_id in self.prefix_cache.saves.items()]
        self.prefix_cache.saves.clear()
        return moves

    def finish_moves(self, moves: Moves[RequestT]) -> None:
        """Releases the host slots that an applied plan has read."""
        for slot in moves.settled_slots:
            self.host.settle(slot)
        self.host.give_back(moves.emptied_slots)

    def forget_worker(self, sequences: Iterable[Sequence[RequestT]], in_flight: Iterable[Moves[RequestT]]) -> None:
        """Forgets all keys and values that were on a lost worker's device and host. `in_flight`: the copies of the
        plans in flight. Call it when no sequence runs."""
        for moves in in_flight:
            self.host.give_back(moves.emptied_slots)
        self.prefix_cache.clear()
        for sequence in sequences:
            self.release_host_slots(sequence)
        self.prefix_cache.saves.clear()

    def check_integrity(
        self,
        running: list[Sequence[RequestT]],
        sequences: Iterable[Sequence[RequestT]],
        in_flight: Iterable[Moves[RequestT]],
    ) -> None:
        """Asserts that no block or slot leaks, that no shared block is being written, and that every published block
        was computed."""
        self.pool.check_integrity(block for sequence in running for block in sequence.block_ids)
        self.prefix_cache.check_integrity()
        taken = [slot for sequence in sequences for slot in sequence.host_slots]
        taken += [slot for moves in in_flight for slot in moves.emptied_slots]
        self.host.check_integrity(taken)
        for sequence in running:
            assert not sequence.host_slots
            num_full = sequence.num_computed_tokens // self._block_size
            assert len(sequence.block_ids) == -(-sequence.num_computed_tokens // self._block_size), "blocks held"
            assert sequence.num_hit_blocks <= sequence.num_published_blocks <= num_full
            for block_id in sequence.block_ids[num_full:]:
                assert self.pool.num_holders(block_id) == 1, "a block that is being written is shared"
            tokens = TokensWithContents(sequence.token_ids.tobytes(), sequence.request.contents)
            size = sequence.token_ids.itemsize * self._block_size
            for index, prefix in enumerate(sequence.prefixes):
                assert prefix.key[1] == tokens[index * size : (index + 1) * size], "a prefix stands for other tokens"
                if index >= sequence.num_published_blocks and prefix.owner is sequence:
                    assert not prefix.is_computed

    def _shares(self, sequence: Sequence[RequestT]) -> bool:
        return self._shares_prefixes and sequence.request.work.can_resume

    def _note_filled(self, sequence: Sequence[RequestT], num_tokens_before: int) -> None:
        num_full = sequence.num_computed_tokens // self._block_size
        if num_full * self._block_size > num_tokens_before:
            self._moves.filled.append((sequence, sequence.wire_id, num_full))

    def _hold(self, sequence: Sequence[RequestT], found: list[SequencePrefix[RequestT]]) -> None:
        """Gives a sequence the blocks of the prefixes found for it. Adds copies to the next plan for the prefixes that
        are only on the host: each is copied to a new block, where other sequences can find it after the copy."""
        # Hold all the prefixes before any block is allocated, because the allocation must not evict one of them.
        for prefix in found:
            if prefix.is_computed:
                self.pool.hold(prefix.block_id)
            else:
                self.host.hold(prefix.host_slot)
        blocks = iter(self.pool.allocate(sum(not prefix.is_computed for prefix in found)))
        for prefix in found:
            if prefix.is_computed:
                sequence.block_ids.append(prefix.block_id)
                continue
            block_id = next(blocks)
            sequence.block_ids.append(block_id)
            self._moves.swap_in.append((prefix.host_slot, block_id))
            self._moves.settled_slots.append(prefix.host_slot)
            prefix.owner = sequence

    def _announce(self, sequence: Sequence[RequestT], num_tokens: int) -> None:
        """Extends a sequence's prefixes to all full blocks in its first `num_tokens` tokens, and announces the new
        prefixes to the cache."""
        prefixes = sequence.prefixes
        first = len(prefixes) * self._block_size
        token_ids = sequence.token_ids[first:num_tokens].tobytes()
        parent = prefixes[-1] if prefixes else sequence.request.cache_salt
        prefixes += self.prefix_cache.announce(token_ids, parent, sequence, sequence.request.contents, first)

    def _swap_in(self, sequence: Sequence[RequestT]) -> None:
        """Has the next plan copy a sequence's swapped-out blocks back to the device, except the blocks whose prefixes
        were found in the cache."""
        slots = sequence.host_slots[len(sequence.block_ids) :]
        blocks = self.pool.allocate(len(slots))
        self._moves.swap_in += zip(slots, blocks, strict=True)
        self._moves.emptied_slots += sequence.host_slots
        sequence.block_ids += blocks
        sequence.num_computed_tokens = max(sequence.num_computed_tokens, sequence.num_swapped_tokens)
        sequence.host_slots = []

    def _enter_group(self, sequence: Sequence[RequestT]) -> None:
        """Adds a sequence to the running choices of its request. If another choice has computed the prompt, plans a
        copy of that choice's last, partial block of the prompt. The choices cannot share this block, because they write
        different output tokens to it.
        """
        others = self._groups.setdefault(sequence.request.group, [])
        num_tokens = len(sequence.request.prompt_token_ids) - 1
        index, rest = divmod(num_tokens, self._block_size)
        is_next = sequence.num_computed_tokens == index * self._block_size
        if rest and is_next and sequence.num_output_tokens == 0 and not sequence.wants_prompt_logprobs:
            source = next((other.block_ids[index] for other in others if other.has_sampled), None)
            if source is not None:
                sequence.block_ids += self.pool.allocate(1)
                self._moves.copies.append((source, sequence.block_ids[-1]))
                sequence.num_computed_tokens = num_tokens
        others.append(sequence)

    def _leave_group(self, sequence: Sequence[RequestT]) -> None:
        others = self._groups[sequence.request.group]
        others.remove(sequence)
        if not others:
            del self._groups[sequence.request.group]
            self._found, self._found_for = [], None


def num_computed(found: list[SequencePrefix[RequestT]]) -> int:
    """Number of prefixes in `found` before the first that is not on the device."""
    return next((index for index, prefix in enumerate(found) if not prefix.is_computed), len(found))
