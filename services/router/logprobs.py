"""Log probabilities, stored in columns.

A token's log probability with those of its twenty candidates, the most likely tokens, takes over 2 KB as Python
objects, but 176 bytes in columns. An answer can have two million log probabilities
(services/router/generation/logprob_count.py), and several answers of this size can wait for their clients at the same
time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self, TypeVar, overload


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of the output and its log probability. `top`: (token id, log probability) of the most likely tokens,
    most likely first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class PromptLogprob:
    """Log probability of one prompt token, given the tokens before it."""

    logprob: float
    # Rank of the token in the vocabulary by probability; 1: the most likely token.
    rank: int
    # (token id, log probability) of the most likely tokens, most likely first.
    top: tuple[tuple[int, float], ...]


E = TypeVar("E", TokenLogprob, PromptLogprob)


class _Columns(Sequence[E]):
    """A sequence of entries, stored in columns. It can grow at its end, but its entries cannot be changed. Slices are
    copies."""

    # `_heads`: for each entry, its token id (TokenLogprob) or its rank (PromptLogprob). The candidates of entry i are
    # _top_ids[_ends[i]:_ends[i + 1]].
    __slots__ = ("_ends", "_heads", "_top_ids", "_top_logprobs", "logprobs")

    def __init__(self, entries: Iterable[E] = ()) -> None:
        self._heads = array("I")
        # Log probability of each entry's own token.
        self.logprobs = array("f")
        self._ends = array("Q", (0,))
        self._top_ids = array("I")
        self._top_logprobs = array("f")
        for entry in entries:
            self.append(entry)

    @property
    def num_candidates(self) -> int:
        """Number of candidates of all entries together."""
        return len(self._top_ids)

    def append(self, entry: E) -> None:
        self._heads.append(self._head(entry))
        self.logprobs.append(entry.logprob)
        self._top_ids.extend(token_id for token_id, _ in entry.top)
        self._top_logprobs.extend(logprob for _, logprob in entry.top)
        self._ends.append(len(self._top_ids))

    def extend(
        self, heads: array[int], logprobs: array[float], counts: Iterable[int], top_ids: array[int],
        top_logprobs: array[float],
    ) -> None:  # fmt: skip
        """Appends entries given as columns. `counts`: number of candidates of each entry."""
        self._heads.extend(heads)
        self.logprobs.extend(logprobs)
        end = self._ends[-1]
        for count in counts:
            end += count
            self._ends.append(end)
        self._top_ids.extend(top_ids)
        self._top_logprobs.extend(top_logprobs)

    def __iadd__(self, other: Iterable[E]) -> Self:
        if not isinstance(other, _Columns):
            for entry in other:
                self.append(entry)
            return self
        base = self._ends[-1] - other._ends[0]
        self._ends.extend(end + base for end in islice(other._ends, 1, None))
        self._heads.extend(other._heads)
        self.logprobs.extend(other.logprobs)
        self._top_ids.extend(other._top_ids)
        self._top_logprobs.extend(other._top_logprobs)
        return self

    def __len__(self) -> int:
        return len(self._heads)

    def __iter__(self) -> Iterator[E]:
        return (self[index] for index in range(len(self._heads)))

    @overload
    def __getitem__(self, index: int) -> E: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> E | Self:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            return self._part(start, stop)
        if index < 0:
            index += len(self)
        start, end = self._ends[index], self._ends[index + 1]
        top = tuple(zip(self._top_ids[start:end], self._top_logprobs[start:end], strict=True))
        return self._entry(self._heads[index], self.logprobs[index], top)

    def _part(self, start: int, end: int) -> Self:
        part = type(self)()
        if start >= end:
            return part
        ends = self._ends[start : end + 1]
        first, last = ends[0], ends[-1]
        part._heads, part.logprobs = self._heads[start:end], self.logprobs[start:end]
        part._ends = array("Q", (end - first for end in ends))
        part._top_ids, part._top_logprobs = self._top_ids[first:last], self._top_logprobs[first:last]
        return part

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (_Columns, list, tuple)) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # Python's way to say that a class is not hashable

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"

    @staticmethod
    def _head(entry: E) -> int:
        raise NotImplementedError

    @staticmethod
    def _entry(head: int, logprob: float, top: tuple[tuple[int, float], ...]) -> E:
        raise NotImplementedError


class TokenLogprobs(_Columns[TokenLogprob]):
    """Log probabilities of output tokens; entry i belongs to token i."""

    __slots__ = ()

    @property
    def token_ids(self) -> array[int]:
        return self._heads

    @staticmethod
    def _head(entry: TokenLogprob) -> int:
        return entry.token_id

    @staticmethod
    def _entry(head: int, logprob: float, top: tuple[tuple[int, float], ...]) -> TokenLogprob:
        return TokenLogprob(head, logprob, top)


class PromptLogprobs(_Columns[PromptLogprob]):
    """Log probabilities of a prompt's tokens, beginning with the second token. The first token has none."""

    __slots__ = ()

    @staticmethod
    def _head(entry: PromptLogprob) -> int:
        return entry.rank

    @staticmethod
    def _entry(head: int, logprob: float, top: tuple[tuple[int, float], ...]) -> PromptLogprob:
        return PromptLogprob(logprob, head, top)
