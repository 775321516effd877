"""Text that is still coming, and how a parser reads it.

A parser is a generator: it reads what is there and yields where it has to wait for more. What it makes of a text then
does not depend on the pieces that the text came in.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
# A step of parsing that may have to wait, and what it returns in the end.
Reading = Generator[None, None, T]

SPACE = re.compile(r"\s+")


class Feed:
    """Everything that was pushed is read once, from the front."""

    __slots__ = ("_at", "_record", "_text", "is_over")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._record: list[str] | None = None
        # Whether no more text will come.
        self.is_over = False

    def push(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    @property
    def num_left(self) -> int:
        """Characters that are there and have not been taken."""
        return len(self._text) - self._at

    def peek(self) -> Reading[str]:
        """The next character, which stays; empty at the end."""
        while self._at == len(self._text):
            if self.is_over:
                return ""
            yield
        return self._text[self._at]

    def here(self, pattern: re.Pattern[str]) -> str:
        """Takes what matches of the text that is there, without waiting; may be nothing. Only for repeated classes of
        characters, where a match that more text would have made longer goes on with the next call."""
        match = pattern.match(self._text, self._at)
        return self.take(match.end() - self._at) if match else ""

    def all(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Takes all that matches, of a repeated class of characters."""
        pieces = []
        while (yield from self.peek()) and (piece := self.here(pattern)):
            pieces.append(piece)
        return "".join(pieces)

    def take(self, length: int = 1) -> str:
        """Takes characters that are there."""
        piece = self._text[self._at : self._at + length]
        self._at += length
        if self._record is not None:
            self._record.append(piece)
        return piece

    def put_back(self, text: str) -> None:
        """What was taken last is read again."""
        self._text = text + self._text[self._at :]
        self._at = 0
        num_chars = len(text)
        while num_chars and self._record:
            piece = self._record.pop()
            if len(piece) > num_chars:
                self._record.append(piece[:-num_chars])
            num_chars -= min(num_chars, len(piece))

    def word(self, word: str) -> Reading[bool]:
        """Takes `word` if the text goes on with it. Waits only as long as it could."""
        if (yield from self.ahead(word)):
            self.take(len(word))
            return True
        return False

    def ahead(self, word: str) -> Reading[bool]:
        """Whether the text goes on with `word`, which stays. Waits as `word` does."""
        while True:
            start = self._text[self._at : self._at + len(word)]
            if start == word:
                return True
            if self.is_over or not word.startswith(start):
                return False
            yield

    def one_of(self, words: Iterable[str]) -> Reading[str]:
        """Takes the first of `words` that the text goes on with, and returns it; empty where there is none."""
        for word in words:
            if (yield from self.word(word)):
                return word
        return ""

    def is_cut(self, *words: str) -> bool:
        """Whether no more comes than the beginning of one of the words, or nothing. Asked after `word` found none."""
        rest = self._text[self._at :]
        return self.is_over and any(word.startswith(rest) for word in words)

    def record(self, before: str = "") -> None:
        """From here on, what is taken is remembered after `before`: it may turn out to be nothing but text."""
        self._record = [before]

    def recorded(self) -> str:
        """What was taken since `record`; ends the record."""
        text = "".join(self._record or ())
        self._record = None
        return text
