"""Pairs of texts: how a tokenizer writes two texts as one sequence, and how a pair that is too long is cut."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Encoding
from tokenizers import Tokenizer as Library


class TextPart(NamedTuple):
    """A text without special tokens."""

    # Token ids. If texts are cut: only as many as a sequence can have.
    ids: array[int]
    # Number of tokens of the whole text.
    num_tokens: int


class TokenPair(NamedTuple):
    """The tokens of two texts that belong to one sequence: the first `num_first` of `first`, and the first `num_second`
    of `second`. The arrays are longer if the pair is cut. Other pairs may contain the same arrays."""

    first: array[int]
    second: array[int]
    num_first: int
    num_second: int

    @classmethod
    def of(cls, first: TextPart, second: TextPart, room: int | None) -> TokenPair:
        """`room`: maximum number of tokens of both texts together, or None. If they have more, the longer text is cut.
        If both are longer than half of the room, both are cut to half of it. transformers calls this
        `longest_first`."""
        num_first, num_second = first.num_tokens, second.num_tokens
        if room is not None and num_first + num_second > room:
            shorter = min(num_first, num_second, room // 2)
            sizes = shorter, room - shorter
            num_first, num_second = sizes if num_first <= num_second else sizes[::-1]
        return cls(first.ids, second.ids, num_first, num_second)


class _Piece(NamedTuple):
    """A special token, or the place of a text."""

    # 0: the first text, 1: the second text, None: a special token.
    text: int | None
    token_id: int
    type_id: int


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """Where a tokenizer puts two texts and the special tokens around them."""

    pieces: tuple[_Piece, ...]

    @classmethod
    def of(cls, library: Library, *, add_special_tokens: bool, has_types: bool = True) -> PairTemplate:
        """Reads the template from a pair of equal texts: the first half of the tokens that are not special is the first
        text. `has_types`: whether the model gets token types, which tell the texts apart."""
        encoding = _equal_texts(library, add_special_tokens=add_special_tokens)
        is_special = list(map(bool, encoding.special_tokens_mask))
        num_first = is_special.count(False) // 2
        pieces: list[_Piece] = []
        num_seen = 0
        types = encoding.type_ids if has_types else [0] * len(encoding.ids)
        for special, token_id, type_id in zip(is_special, encoding.ids, types, strict=True):
            if special:
                pieces.append(_Piece(None, token_id, type_id))
                continue
            if num_seen in (0, num_first):
                pieces.append(_Piece(0 if num_seen == 0 else 1, token_id, type_id))
            num_seen += 1
        return cls(tuple(pieces))

    @property
    def num_special(self) -> int:
        """Number of special tokens."""
        return sum(piece.text is None for piece in self.pieces)

    def num_tokens(self, pair: TokenPair) -> int:
        """Returns the length of a pair's sequence."""
        return pair.num_first + pair.num_second + self.num_special

    def join(self, pair: TokenPair) -> list[int]:
        """Returns the token ids of a pair's sequence."""
        joined: list[int] = []
        for piece in self.pieces:
            match piece.text:
                case None:
                    joined.append(piece.token_id)
                case 0:
                    joined += pair.first[: pair.num_first]
                case _:
                    joined += pair.second[: pair.num_second]
        return joined

    def second_text_at(self, pair: TokenPair) -> int | None:
        """Returns the index of the first token whose type is that of second texts; None if the tokenizer does not tell
        texts apart."""
        start = 0
        for piece in self.pieces:
            length = 1 if piece.text is None else (pair.num_first, pair.num_second)[piece.text]
            if piece.type_id == 1 and length:
                return start
            start += length
        return None


def _equal_texts(library: Library, *, add_special_tokens: bool) -> Encoding:
    """Returns a pair of equal texts that have tokens. If no token of the vocabulary can be written as a text, the texts
    have no tokens."""
    encoding = library.encode("a", "a", add_special_tokens=add_special_tokens)
    if all(encoding.special_tokens_mask):
        for text in library.get_vocab():
            other = library.encode(text, text, add_special_tokens=add_special_tokens)
            if not all(other.special_tokens_mask):
                return other
    return encoding
