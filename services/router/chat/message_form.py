"""The type of all forms in which models write messages: what reads one, and what makes a grammar of one.

A MessageForm is a model's, as its template or the operator tells it. For each request it makes a MessagePlan, which
says how the answers to this request are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.router.chat.answer_grammar import Tags
from services.router.chat.parsers import Feed, Functions, MessageBuilder, Reading, ToolForm
from services.router.chat.tools import Tool, ToolChoice, ToolMode
from services.router.constraints import AroundStructure
from services.router.generation import ChoiceDelta
from services.router.text import Vocabulary


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks of its answers."""

    tools: tuple[Tool, ...]
    choice: ToolChoice
    # Whether a grammar holds the answers to a structure; calls that are asked for are one.
    has_structure: bool
    # Whether the template's arguments leave it to the model to think.
    may_think: bool
    # Whether the answer goes on with the last message.
    is_continued: bool

    @property
    def may_call(self) -> bool:
        """Whether the model may call as it likes, in its own form."""
        return bool(self.tools) and self.choice.mode is ToolMode.AUTO


class ReasoningCount(Protocol):
    """Counts one choice's tokens of reasoning, with those that begin and end it."""

    @property
    def num_tokens(self) -> int:
        """So far."""

    def add(self, delta: ChoiceDelta) -> None:
        """Takes each delta after its text was read."""


class MessagePlan(Protocol):
    """How the answers to one request are written; shared by its choices."""

    @property
    def tags(self) -> tuple[str, ...]:
        """What marks a message's parts, text or tokens."""

    @property
    def is_plain(self) -> bool:
        """Whether all text is content."""

    @property
    def reasons(self) -> bool:
        """Whether a message may have reasoning."""

    @property
    def is_inside(self) -> bool:
        """Whether a message begins in the middle of reasoning."""

    def read(self, feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
        """Reads one message to its end."""

    def count(self, builder: MessageBuilder) -> ReasoningCount | None:
        """A count for one choice, whose message `builder` builds. None: there is nothing to count."""

    def grammar(self, tags: Tags) -> AroundStructure:
        """What may stand before the request's structure, and in its place. `tags`: as the vocabulary has them."""


class MessageForm(Protocol):
    @property
    def tools(self) -> ToolForm | None:
        """How calls are written. None: calls stay text."""

    @property
    def heeds_prompt(self) -> bool:
        """Whether a message goes on with what the prompt's last tokens begin."""

    @property
    def calls_fit_structures(self) -> bool:
        """Whether calls can be told from a structure that may stand in their place."""

    @property
    def thinking_tags(self) -> tuple[str, str] | None:
        """What begins reasoning and what ends it. None: the model does not reason."""

    def plan(self, asked: Asked, prompt_end: str, vocabulary: Vocabulary) -> MessagePlan:
        """`prompt_end`: the text of the prompt's last tokens, or of the message that is continued; empty where the form
        does not heed it."""
