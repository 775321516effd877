"""Spreads the sequences of a lost worker over the schedulers of the workers that are left.

Each sequence goes where the least work is outstanding after it has come, in proportion to the KV cache. Blocks that a
scheduler has in its prefix cache are work that it need not do. So are blocks that a sequence assigned earlier to the
same scheduler will compute. So sequences with a common prefix go to the same scheduler, until another one has so
much less to do that it computes the prefix again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from collections.abc import Sequence as Items
from typing import Generic

from services.scheduler.core.request import RequestT
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.sequence import Sequence

# Maximum number of sequences, of those with the same first block, with which a sequence is compared.
_MAX_COMPARED = 4


class _Taker(Generic[RequestT]):
    """One scheduler, and the sequences that it is to adopt."""

    def __init__(self, core: Scheduler[RequestT]) -> None:
        self.core = core
        self.sequences: list[Sequence[RequestT]] = []
        self._num_tokens = core.num_outstanding_tokens
        self._num_sequences = core.num_running + core.num_waiting
        self._block_bytes = core.config.block_size * 4
        # Tokens of the sequences given to this scheduler last, by what makes prefixes comparable, and the first block.
        self._families: dict[Hashable, deque[bytes]] = {}

    def load_with(self, sequence: Sequence[RequestT], token_ids: bytes) -> tuple[bool, float]:
        """Returns the load if the sequence is added. A scheduler without a free slot comes after all that have one."""
        config = self.core.config
        num_tokens = self._num_tokens + self._num_new_tokens(sequence, token_ids)
        return self._num_sequences >= config.max_num_seqs, num_tokens / (config.num_blocks * config.block_size)

    def add(self, sequence: Sequence[RequestT], token_ids: bytes) -> None:
        self._num_tokens += self._num_new_tokens(sequence, token_ids)
        self._num_sequences += 1
        self.sequences.append(sequence)
        family = self._families.setdefault(self._family(sequence, token_ids), deque(maxlen=_MAX_COMPARED))
        family.append(token_ids)

    def _num_new_tokens(self, sequence: Sequence[RequestT], token_ids: bytes) -> int:
        return sequence.num_outstanding_tokens - self._num_shared_tokens(sequence, token_ids)

    def _num_shared_tokens(self, sequence: Sequence[RequestT], token_ids: bytes) -> int:
        config = self.core.config
        if not config.enable_prefix_caching or not sequence.request.work.can_resume:
            return 0
        family = self._families.get(self._family(sequence, token_ids), ())
        num_blocks = max((_num_common(token_ids, other, self._block_bytes) for other in family), default=0)
        num_shared = max(num_blocks * config.block_size, self.core.num_found_tokens(sequence))
        return min(num_shared, sequence.num_reusable_tokens)

    def _family(self, sequence: Sequence[RequestT], token_ids: bytes) -> Hashable:
        return sequence.request.cache_salt, sequence.request.contents, token_ids[: self._block_bytes]


def share_out(lost: Items[Sequence[RequestT]], cores: Items[Scheduler[RequestT]]) -> list[list[Sequence[RequestT]]]:
    """Returns, for each of `cores`, the sequences that it should adopt. `lost`: drained sequences, in the order of
    arrival. Each must fit in the context of at least one of `cores`.
    """
    takers = [_Taker(core) for core in cores]
    for sequence in lost:
        token_ids = sequence.token_ids.tobytes()
        fitting = [taker for taker in takers if taker.core.fits(sequence.request)]
        loads = [taker.load_with(sequence, token_ids) for taker in fitting]
        fitting[loads.index(min(loads))].add(sequence, token_ids)
    return [taker.sequences for taker in takers]


def _num_common(one: bytes, other: bytes, size: int) -> int:
    """Number of equal parts of `size` bytes at the front of both."""
    low, high = 0, min(len(one), len(other)) // size
    while low < high:
        middle = (low + high + 1) // 2
        if one[low * size : middle * size] == other[low * size : middle * size]:
            low = middle
        else:
            high = middle - 1
    return low
