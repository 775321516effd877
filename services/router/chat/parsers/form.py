"""Type of a form in which models write tool calls."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.feed import Feed, Reading

# JSON schemas of the functions' arguments, by function name. None: the function takes no arguments.
Functions = Mapping[str, Mapping[str, Any] | None]


def openai_id() -> str:
    return f"call_{secrets.token_hex(12)}"


Read = Callable[[Feed, MessageBuilder, Functions], Reading[None]]


# JSON schemas of strict tools' arguments, by tool name. Each is checked, and contains all definitions that it refers
# to.
Schemas = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class WantedCalls:
    """The calls that a grammar has to allow."""

    # Names of the functions that are not strict: there is a rule `name` for them, unless there are none.
    names: Sequence[str]
    strict: Schemas
    # Whether a message may have several calls.
    several: bool
    # Converts text that contains tags to a grammar expression.
    expression: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class CallsGrammar:
    # Expression for one or more calls. It does not include the marker.
    expression: str
    # Rules that the expression refers to.
    rules: str = ""
    # Schemas of the JSON that the expression and the rules refer to, by name: `@name`.
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class OwnArguments(Protocol):
    """A form whose arguments are not JSON: its grammar, and a reader for what the grammar accepts. The form's usual
    reader forgives mistakes, and would find other calls than the grammar has."""

    def grammar(self, wanted: WantedCalls) -> CallsGrammar:
        """Raises GrammarError, such as UnsupportedKeywordError if a schema has a keyword that cannot be enforced."""

    def reader(self, strict: Schemas) -> Read:
        """Returns a reader for the calls of the grammar, with the marker if the form has one. The text can end
        anywhere."""


@dataclass(frozen=True, slots=True)
class Marked:
    """Shape of calls that begin with a unique marker. Without `own`, the arguments are JSON, and Quire derives the
    grammar from `ToolForm.write`."""

    marker: str
    own: OwnArguments | None = None
    fits_structures: ClassVar[bool] = True
    # Returns an expression for what a model may write between a function's name and its JSON arguments, besides what
    # `ToolForm.write` has there. `expression`: as in WantedCalls.
    before_arguments: Callable[[Callable[[str], str]], str] = lambda expression: ""


@dataclass(frozen=True, slots=True)
class Objects:
    """Shape of calls that have no marker: each is only a JSON object with a name and arguments."""

    # Reads the calls at the start of a message; without calls, the message is content.
    read: Read
    arguments: str
    # Text between two calls. None: several calls form an array.
    separator: str | None = None
    own: ClassVar[None] = None
    # Characters with which calls begin, and text cannot, if calls are constrained.
    opening: ClassVar[str] = "[{"
    fits_structures: ClassVar[bool] = True

    def reader(self, strict: Schemas) -> Read:
        return self.read


@dataclass(frozen=True, slots=True)
class Listed:
    """Shape of calls that stand in brackets at the start of a message, and whose arguments are not JSON objects. They
    cannot be combined with a structure: it can be a list, too, and nothing before the first call's name distinguishes
    the two."""

    own: OwnArguments
    opening: ClassVar[str] = "["
    fits_structures: ClassVar[bool] = False

    def reader(self, strict: Schemas) -> Read:
        return self.own.reader(strict)


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
    # How a parser tells calls from text and from a structure. None: only for gpt-oss' form, for which
    # harmony_messages.py has a grammar.
    shape: Marked | Objects | Listed | None = None
