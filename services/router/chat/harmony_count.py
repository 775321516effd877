"""Counts the reasoning tokens of gpt-oss messages, token by token.

Detokenized text lags behind its tokens, so it does not show which message a token belongs to. The count therefore uses
the text of each single token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container

from services.router.chat.parsers import (
    CHANNEL,
    ENDS,
    HEADER_BEGINS,
    MAX_HEADER_CHARS,
    MESSAGE,
    START,
    HarmonyReader,
    Header,
    Kind,
)
from services.router.generation import ChoiceDelta

# Marks that end a message.
_ENDS = (*ENDS, START)
_END = re.compile("|".join(map(re.escape, _ENDS)))
# Marks that end a header.
_MARK = re.compile("|".join(map(re.escape, (MESSAGE, *_ENDS))))


class HarmonyCount:
    """A ReasoningCount that counts every token of a reasoning message, including the tokens of its header and its end
    mark."""

    __slots__ = ("_in_header", "_kind", "_names", "_num_held", "_num_tokens", "_reader", "_text", "_token_text")

    def __init__(self, reader: HarmonyReader, names: Container[str], token_text: Callable[[int], str]) -> None:
        """`names`: names of the request's functions."""
        self._reader = reader
        self._names = names
        self._token_text = token_text
        self._num_tokens = 0
        # Kind of the current message. It is CONTENT until the message's header is complete, because text without a
        # header is content.
        self._kind = Kind.CONTENT if reader.begins is None else self._kind_of(reader.begins)
        self._in_header = reader.begins is None
        # The held text, whose tokens are not counted yet, and the number of these tokens. The text is an incomplete
        # header, or can be the start of a mark that ends the message.
        self._text = ""
        self._num_held = 0

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def add(self, delta: ChoiceDelta) -> None:
        for token_id in delta.token_ids:
            text = self._token_text(token_id)
            if self._in_header or self._text or "<" in text:
                self._text += text
                self._num_held += 1
                self._judge()
            elif self._kind is Kind.REASONING:
                self._num_tokens += 1
        if delta.finish_reason is not None and not self._in_header:
            self._settle()

    def _judge(self) -> None:
        while (self._end_header if self._in_header else self._end_body)():
            pass

    def _end_header(self) -> bool:
        """Takes a complete header from the start of the held text, and sets the current message's kind to the kind that
        the header gives. Returns whether more of the held text can be processed now."""
        self._text = self._text.lstrip()
        found = _MARK.search(self._text, len(START) if self._text.startswith(START) else 0)
        if found is not None:
            header = self._text[: found.start()]
            if found[0] == MESSAGE or START in header or CHANNEL in header:
                self._kind = self._kind_of(Header.of(header))
            self._text = self._text[found.end() if found[0] == MESSAGE else found.start() :]
        elif self._may_be_header():
            return False
        else:
            # The start token did not begin a message.
            self._text = self._text.removeprefix(START)
        self._in_header = False
        # If no text follows the header, all held tokens belong to the message of this header. Otherwise `_end_body`
        # counts them.
        if not self._text:
            self._settle()
        return bool(self._text)

    def _may_be_header(self) -> bool:
        text = self._text
        is_begun = text.startswith(HEADER_BEGINS) or any(begin.startswith(text) for begin in HEADER_BEGINS)
        return is_begun and len(text) < MAX_HEADER_CHARS

    def _end_body(self) -> bool:
        """Takes the current message's text, up to the message's end mark, from the held text, and counts the tokens of
        the text that it took. Returns whether more of the held text can be processed now."""
        found = _END.search(self._text)
        if found is not None:
            if found[0] == START:
                # The held tokens stay held, because they belong to the next message, which begins with this <|start|>.
                # Among them can be a token that also has text of the old message; it counts for the next message only.
                self._text = self._text[found.start() :]
            else:
                self._text = self._text[found.end() :]
                self._settle()
            self._kind, self._in_header = Kind.CONTENT, True
            return bool(self._text)
        start = self._text.rfind("<")
        tail = self._text[start:] if start >= 0 else ""
        if not tail or not any(mark.startswith(tail) for mark in _ENDS):
            self._text = ""
            self._settle()
        elif start:
            # `tail` can be the start of a mark. It begins in the last held token, so this token stays held.
            self._text = tail
            self._settle(keeps=1)
        return False

    def _settle(self, keeps: int = 0) -> None:
        """Releases the held tokens except the last `keeps`, and counts the released ones if the current message is
        reasoning."""
        if self._kind is Kind.REASONING:
            self._num_tokens += self._num_held - keeps
        self._num_held = keeps

    def _kind_of(self, header: Header) -> Kind:
        return header.kind(self._names, may_call=self._reader.may_call)
