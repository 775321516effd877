"""Words to spell, reverse and echo: a list of English words, and strings of letters that are no words."""

from __future__ import annotations

import random
import string
from pathlib import Path

ENGLISH: tuple[str, ...] = tuple((Path(__file__).parent / "words.txt").read_text(encoding="ascii").split())

MAX_LETTERS = 10
_VOWELS = "aeiou"
_CONSONANTS = "bcdfghjklmnpqrstvwxyz"


def syllables(rng: random.Random, length: int) -> str:
    """A made-up word that could be a name: consonants and vowels in turns."""
    offset = rng.randrange(2)
    return "".join(rng.choice((_CONSONANTS, _VOWELS)[(i + offset) % 2]) for i in range(length))


def invented(rng: random.Random) -> str:
    """A made-up word of 2 to MAX_LETTERS letters.

    Three sorts, because each teaches what the others leave out: syllables look like English; letters at
    random make guessing from English useless; few different letters make repeats so common that copying
    has to go by place and not by "the letter that followed this one last time".
    """
    length = rng.choice((2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 10))
    sort = rng.random()
    if sort < 0.4:
        return syllables(rng, length)
    if sort < 0.7:
        return "".join(rng.choice(string.ascii_lowercase) for _ in range(length))
    letters = rng.sample(string.ascii_lowercase, rng.randint(2, 4))
    return "".join(rng.choice(letters) for _ in range(length))
