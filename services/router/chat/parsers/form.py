"""Type of a form in which models write tool calls."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.feed import Feed, Reading

# JSON schemas of the functions' arguments, by function name. None: the function takes no arguments.
Functions = Mapping[str, Mapping[str, Any] | None]


def openai_id() -> str:
    return f"call_{secrets.token_hex(12)}"


Read = Callable[[Feed, MessageBuilder, Functions], Reading[None]]


@dataclass(frozen=True, slots=True)
class Marked:
    """Shape of calls that begin with a unique marker. Without `rules`, Quire derives the grammar from `ToolForm.write`;
    the arguments must then be JSON."""

    marker: str
    # For a form whose arguments are not JSON: returns the grammar rules, with `calls` as the entry rule. The first
    # parameter converts text that contains tags to a grammar expression. The second says whether several calls are
    # allowed. The rule `name`, for the functions' names, already exists.
    rules: Callable[[Callable[[str], str], bool], str] | None = None


@dataclass(frozen=True, slots=True)
class Objects:
    """Shape of calls that have no marker: each is only a JSON object with a name and arguments."""

    # Reads the calls at the start of a message; without calls, the message is content.
    read: Read
    arguments: str
    # Text between two calls. None: several calls form an array.
    separator: str | None = None


@dataclass(frozen=True, slots=True)
class ToolForm:
    # Reads one message to its end. feed.py describes parsers.
    read: Read
    # Returns the text of one message's calls, each given as a name and JSON arguments. If the chat template does not
    # support tools, Quire uses this text in the prompt, as an example of the form and for the calls of earlier turns.
    write: Callable[[list[tuple[str, str]]], str]
    # Special tokens that the form uses.
    tokens: tuple[str, ...] = ()
    new_id: Callable[[], str] = openai_id
    # How a parser tells calls from a structure, if the model may write either. None: a request cannot combine calls of
    # this form with a structure. gpt-oss' form is an exception: harmony_messages.py has a grammar for it.
    shape: Marked | Objects | None = None
