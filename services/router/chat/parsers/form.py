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
    """Shape of calls that begin with a unique marker and have JSON arguments, as `ToolForm.write` writes them."""

    marker: str
    # Returns the grammar rules for `calls`, for a form whose arguments are not JSON. The first argument turns a text
    # with tags into an expression; the second says whether several calls are allowed. The rule `name` already exists.
    rules: Callable[[Callable[[str], str], bool], str] | None = None


@dataclass(frozen=True, slots=True)
class Objects:
    """Shape of calls that are only JSON objects with a name and arguments."""

    # Reads the calls at the start of a message; without calls, the message is content.
    read: Read
    arguments: str
    # Separator of several calls. None: several calls form an array.
    separator: str | None = None


@dataclass(frozen=True, slots=True)
class ToolForm:
    # Reads one message to its end. feed.py describes parsers.
    read: Read
    # Writes the calls of one message, each a name and its JSON arguments. The prompt uses this to explain the form, and
    # to render earlier calls, if the chat template does not support tools.
    write: Callable[[list[tuple[str, str]]], str]
    # Special tokens that the form uses.
    tokens: tuple[str, ...] = ()
    new_id: Callable[[], str] = openai_id
    # How calls differ from a structure that the model may write instead. None: Quire has no grammar for these calls.
    shape: Marked | Objects | None = None
