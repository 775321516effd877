"""Input of the parsers: text that arrives in pieces.

A parser is a generator. It reads the text that has arrived and yields when it needs more, so that its result does not
depend on how the text is split.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
# A parsing step that can wait for text. T is the type of its result.
Reading = Generator[None, None, T]

SPACE = re.compile(r"\s+")


class Feed:
    """A queue of characters: `push` adds text at the end, and the parser takes it from the front."""

    __slots__ = ("_at", "_record", "_text", "is_over")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._record: list[str] | None = None
        # Whether the text is complete.
        self.is_over = False

    def push(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    @property
    def num_left(self) -> int:
        """Number of characters that have arrived and are not taken yet."""
        return len(self._text) - self._at

    def peek(self) -> Reading[str]:
        """Waits for the next character and returns it without taking it. Returns an empty string at the end of the
        text."""
        while self._at == len(self._text):
            if self.is_over:
                return ""
            yield
        return self._text[self._at]

    def here(self, pattern: re.Pattern[str]) -> str:
        """Takes the text that matches `pattern`, possibly none, without waiting. `pattern` must be a repeated character
        class, so that the next call continues the match if more matching text arrives."""
        match = pattern.match(self._text, self._at)
        return self.take(match.end() - self._at) if match else ""

    def all(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Takes the longest match of `pattern`, which must be a repeated character class."""
        pieces = []
        while (yield from self.peek()) and (piece := self.here(pattern)):
            pieces.append(piece)
        return "".join(pieces)

    def take(self, length: int = 1) -> str:
        """Takes `length` characters, which must have arrived."""
        piece = self._text[self._at : self._at + length]
        self._at += length
        if self._record is not None:
            self._record.append(piece)
        return piece

    def put_back(self, text: str) -> None:
        """Puts back `text`, which must be the text that was taken last, so that it is read again."""
        self._text = text + self._text[self._at :]
        self._at = 0
        num_chars = len(text)
        while num_chars and self._record:
            piece = self._record.pop()
            if len(piece) > num_chars:
                self._record.append(piece[:-num_chars])
            num_chars -= min(num_chars, len(piece))

    def word(self, word: str) -> Reading[bool]:
        """Takes `word` if the text continues with it. Waits only while the text that has arrived is a prefix of
        `word`."""
        if (yield from self.ahead(word)):
            self.take(len(word))
            return True
        return False

    def ahead(self, word: str) -> Reading[bool]:
        """Returns whether the text continues with `word`, without taking it. Waits as `word` does."""
        while True:
            start = self._text[self._at : self._at + len(word)]
            if start == word:
                return True
            if self.is_over or not word.startswith(start):
                return False
            yield

    def one_of(self, words: Iterable[str]) -> Reading[str]:
        """Takes and returns the first of `words` with which the text continues; empty if there is none."""
        for word in words:
            if (yield from self.word(word)):
                return word
        return ""

    def is_cut(self, *words: str) -> bool:
        """Returns whether the text was possibly cut off before the end of one of `words`. This is the case if no more
        text can arrive, and the text that is not yet taken is empty or a prefix of one of `words`. Call this method
        after `word` returned False."""
        rest = self._text[self._at :]
        return self.is_over and any(word.startswith(rest) for word in words)

    def record(self, before: str = "") -> None:
        """Starts a record of the text that is taken from now on, with `before` at its start. A parser needs the record
        if text that looked like a call turns out to be content."""
        self._record = [before]

    def recorded(self) -> str:
        """Returns the text that was taken since `record`, and ends the record."""
        text = "".join(self._record or ())
        self._record = None
        return text
