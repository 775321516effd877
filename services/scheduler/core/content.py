"""What tokens stand for if their ids do not say it. For example, every image has the same placeholder tokens.

The prefix cache compares the token ids of a prompt block by block. If a prompt has contents, the cache slices
`TokensWithContents` instead, in which blocks with different contents differ.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import NamedTuple

_BYTES_PER_TOKEN = 4
_start, _stop = attrgetter("start"), attrgetter("stop")


class Content(NamedTuple):
    """The content of the tokens `start`, ..., `stop` - 1 of a prompt."""

    start: int
    stop: int
    digest: bytes  # of the whole content, by a hash without known collisions, such as SHA-256


# A block of tokens as the prefix cache compares it: their ids (u32), with the contents that have tokens in the block.
# The cache compares blocks only at equal places of two sequences. So a content's place in its sequence can be a part of
# the block, and tells which of the content's tokens the block has.
Block = bytes | tuple[bytes, tuple[Content, ...]]


class TokensWithContents:
    """Token ids (u32), some of them with contents. It is sliced in bytes, as the ids themselves are."""

    __slots__ = ("_contents", "_first", "_token_ids")

    def __init__(self, token_ids: bytes, contents: tuple[Content, ...], first: int = 0) -> None:
        """`contents`: of the whole sequence, in order and disjoint; `first`: position of the first of `token_ids` in
        the sequence."""
        self._token_ids, self._contents, self._first = token_ids, contents, first

    def __getitem__(self, part: slice) -> Block:
        start, stop = self._first + part.start // _BYTES_PER_TOKEN, self._first + part.stop // _BYTES_PER_TOKEN
        low = bisect_right(self._contents, start, key=_stop)
        high = bisect_left(self._contents, stop, low, key=_start)
        token_ids = self._token_ids[part]
        return (token_ids, self._contents[low:high]) if low < high else token_ids
