"""The shape of one kind of question, and where its operands come from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from training import holdout, words

Slots = dict[str, str]


class Dressing(Enum):
    """What may be put around a wording."""

    FULL = "a polite beginning and ending"
    OPEN_END = "a beginning only: an ending would belong to what is to be echoed"
    NONE = "nothing: it is a greeting or the like"


@dataclass(frozen=True)
class Operands:
    """Draws operands from one side of the hold-out split."""

    rng: random.Random
    held_out: bool
    english: Sequence[str]  # the words of this side
    known: Sequence[str]  # words that the wordings use, which the tokenizer has as single tokens

    def word(self) -> str:
        """A word: of the list, made up, or (rarely, so that single tokens are spelled too) a known one."""
        if self.held_out:
            return self.rng.choice(self.english)
        word = self.rng.choice(self.known) if self.rng.random() < 0.1 else self.fresh_word()
        return word.capitalize() if self.rng.random() < 0.06 else word

    def fresh_word(self) -> str:
        """A word that the wordings do not use."""
        if self.held_out or self.rng.random() < 0.35:
            return self.rng.choice(self.english)
        return words.invented(self.rng)

    def pair(self, accept: Callable[[int, int], bool] = lambda a, b: True, top: int = 99) -> tuple[int, int]:
        """Two numbers from 0 to `top` that `accept` takes, of this side of the split."""
        while True:
            # Small numbers are what people try first, and are few among all pairs.
            limit = top if self.held_out or self.rng.random() < 0.7 else min(top, 20)
            a, b = self.rng.randint(0, limit), self.rng.randint(0, limit)
            if accept(a, b) and holdout.is_held_out_pair(a, b) == self.held_out:
                return a, b


@dataclass(frozen=True)
class Kind:
    """One kind of question with its answer.

    Wordings end in "?" (a question) or "." (an order), and have slots in braces. Open kinds have operands held
    out; closed kinds have wordings held out (`held_out_wordings`), which training never sees.
    """

    name: str
    weight: float
    wordings: tuple[str, ...]
    draw: Callable[[Operands], Slots]
    answers: tuple[str, ...]  # any of them is right; training picks one
    held_out_wordings: tuple[str, ...] = ()
    again: tuple[str, ...] = ()  # short wordings that make sense right after the same kind
    dressing: Dressing = Dressing.FULL

    @property
    def open(self) -> bool:
        return not self.held_out_wordings


def nothing(_: Operands) -> Slots:
    """For kinds without operands."""
    return {}


def quoted(rng: random.Random, text: str) -> str:
    """`text` the way people mark a word they talk about."""
    draw = rng.random()
    if draw < 0.45:
        return f'"{text}"'
    if draw < 0.85:
        return text
    return f"'{text}'" if draw < 0.95 else f"“{text}”"
