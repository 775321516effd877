"""A form in which models write tool calls."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.feed import Feed, Reading

# The schemas of the functions' arguments, by name; None: it takes none.
Functions = Mapping[str, Mapping[str, Any] | None]


def openai_id() -> str:
    return f"call_{secrets.token_hex(12)}"


Read = Callable[[Feed, MessageBuilder, Functions], Reading[None]]


@dataclass(frozen=True, slots=True)
class Marked:
    """Calls that begin with a text that nothing else begins with, and hold their arguments as JSON, as in `write`."""

    marker: str
    # Rules for `calls`, where arguments are no JSON. Called with what makes an expression of a text with tags, and with
    # whether there may be several calls; the rule `name` is there.
    rules: Callable[[Callable[[str], str], bool], str] | None = None


@dataclass(frozen=True, slots=True)
class Objects:
    """Calls that are JSON objects with a name and arguments, and nothing else."""

    # Reads calls that a message begins with; content where there are none.
    read: Read
    arguments: str
    # Between several calls; None: they are an array.
    separator: str | None = None


@dataclass(frozen=True, slots=True)
class ToolForm:
    # Reads one message to its end, as a parser of feed.py.
    read: Read
    # One message's calls in this form, each a name and its arguments as JSON: what a model is told to write, and has
    # written, where its template knows no tools.
    write: Callable[[list[tuple[str, str]]], str]
    # Special tokens that the form is made of.
    tokens: tuple[str, ...] = ()
    new_id: Callable[[], str] = openai_id
    # How calls are told from another structure that may be written instead; None: no grammar is made of them.
    shape: Marked | Objects | None = None
