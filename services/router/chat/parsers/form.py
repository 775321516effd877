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


@dataclass(frozen=True, slots=True)
class ToolForm:
    # Reads one message to its end, as a parser of feed.py.
    read: Callable[[Feed, MessageBuilder, Functions], Reading[None]]
    # One message's calls in this form, each a name and its arguments as JSON: what a model is told to write, and has
    # written, where its template knows no tools.
    write: Callable[[list[tuple[str, str]]], str]
    # Special tokens that the form is made of.
    tokens: tuple[str, ...] = ()
    new_id: Callable[[], str] = openai_id
