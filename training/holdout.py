"""What the training text never contains, so that the tests can ask about things the model has not seen.

The split is a checksum of the operand, so it depends on no seed and on no order of generation. `Guard` reads
finished text, not the generator's intentions: it would catch a held-out word that slipped in by any road, an
invented or a reversed one included.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from itertools import combinations

NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip

_WORD = re.compile(r"[a-z]+")
_NUMBER = re.compile(r"\d+|\b(?:" + "|".join(NUMBER_WORDS) + r")\b")


def is_held_out_word(word: str) -> bool:
    """True for a quarter of all words."""
    return zlib.crc32(word.lower().encode()) % 4 == 0


def is_held_out_pair(a: int, b: int) -> bool:
    """True for an eighth of all pairs, in either order: (7, 5) and (5, 7) share their fate."""
    return zlib.crc32(f"{min(a, b)} {max(a, b)}".encode()) % 8 == 0


def normalized(text: str) -> str:
    """Lower case, letters, digits and single spaces: wordings are compared without punctuation."""
    return " ".join(re.sub(r"[^a-z0-9{}_]+", " ", text.lower().replace("'", "")).split())


def wording_pattern(core: str) -> str:
    """A pattern that finds the wording `core` in normalized text, whatever fills its slots."""
    parts = re.split(r"\{\w+\}", normalized(core))
    return r"\b" + r"[a-z0-9]+".join(re.escape(part) for part in parts) + r"\b"


def numbers(text: str) -> list[int]:
    """The numbers in a text, in digits or in words up to twenty."""
    found = _NUMBER.findall(text.lower())
    return [int(n) if n.isdigit() else NUMBER_WORDS.index(n) for n in found]


def words_of(text: str) -> list[str]:
    """The runs of letters in a text, in lower case."""
    return _WORD.findall(text.lower())


class Guard:
    """Finds held-out words, pairs and wordings in text."""

    def __init__(self, words: Iterable[str], wordings: Iterable[str]) -> None:
        self.words = frozenset(words)
        self._wordings = re.compile("|".join(sorted({wording_pattern(core) for core in wordings})))

    def leak(self, question: str, answer: str) -> str | None:
        """What of the held-out set this exchange contains, or None.

        Any two numbers of a question are a pair. Of an answer only the first two are: what follows them is
        the result ("7 plus 5 is 12") or the list that was asked for ("from 3 to 5: 3, 4, 5").
        """
        for text in (question, answer):
            for word in words_of(text):
                if word in self.words:
                    return f"word {word!r}"
        for pair in (*combinations(numbers(question), 2), tuple(numbers(answer)[:2])):
            if len(pair) == 2 and is_held_out_pair(*pair):
                return f"pair {pair}"
        if match := self._wordings.search(normalized(question)):
            return f"wording {match.group()!r}"
        return None
