"""Interfaces of message forms: how a model writes its messages, how to parse them, and the grammar for them.

Each model has one MessageForm, selected by the model's chat template or by the operator. For each request, the form
makes a MessagePlan, which describes how the answers to that request are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.router.chat.answer_grammar import Tags
from services.router.chat.parsers import Feed, Functions, MessageBuilder, Reading, ToolForm
from services.router.chat.tools import Tool, ToolChoice, ToolMode
from services.router.constraints import AroundStructure
from services.router.generation import ChoiceDelta
from services.router.text import Vocabulary


@dataclass(frozen=True, slots=True)
class Asked:
    """The parts of a request that affect the form of its answers."""

    tools: tuple[Tool, ...]
    choice: ToolChoice
    # Whether the answers have a structure, because the request asks for structured output or requires a call.
    has_structure: bool
    # Whether the template's arguments allow the model to think.
    may_think: bool
    # Whether the answer continues the last message.
    is_continued: bool
    # Schemas of the arguments of strict tools that the model may decide to call (call_grammar.py).
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar constrains the answers."""
        return self.has_structure or bool(self.schemas)

    @property
    def may_call(self) -> bool:
        """Whether the model may decide to call a tool (tool choice `auto`). It writes such calls in its own form."""
        return bool(self.tools) and self.choice.mode is ToolMode.AUTO


class ReasoningCount(Protocol):
    """Counts one choice's reasoning tokens, including the tokens of the tags around the reasoning."""

    @property
    def num_tokens(self) -> int:
        """Number of reasoning tokens so far."""

    def add(self, delta: ChoiceDelta) -> None:
        """Counts the tokens of `delta`. Call it after the message's reader has read the delta's text."""


class MessagePlan(Protocol):
    """How the answers to one request are written. All choices share it."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that separate a message's parts, such as <think>. In the model's vocabulary, a tag is either a
        special token or ordinary text."""

    @property
    def is_plain(self) -> bool:
        """Whether all text is content."""

    @property
    def reasons(self) -> bool:
        """Whether a message can have reasoning."""

    @property
    def is_inside(self) -> bool:
        """Whether a message begins inside the reasoning. Such a message does not contain the reasoning's begin tag."""

    def read(self, feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
        """Reads one message to its end."""

    def count(self, builder: MessageBuilder) -> ReasoningCount | None:
        """Returns a counter of the reasoning tokens of one choice; None if there is no reasoning to count. `builder`:
        builds the choice's message."""

    def grammar(self, tags: Tags) -> AroundStructure:
        """Returns an object that turns the grammar of the request's structure into the grammar of the whole answer. The
        whole answer can have reasoning before the structure, or calls instead of the structure. If the request has no
        structure, but strict tools, the answer is text, calls, or both. `tags`: token ids of the tags that this plan
        uses."""


class MessageForm(Protocol):
    @property
    def tools(self) -> ToolForm | None:
        """The form of tool calls. None: calls are not parsed and stay in the content."""

    @property
    def heeds_prompt(self) -> bool:
        """Whether the end of the prompt affects how the answer begins, so that `plan` needs `prompt_end`."""

    @property
    def calls_fit_structures(self) -> bool:
        """Whether the parser can distinguish tool calls from the request's structured output, if an answer may have
        either."""

    @property
    def calls_follow_schemas(self) -> bool:
        """Whether a grammar can make calls match the schemas of strict tools."""

    @property
    def thinking_tags(self) -> tuple[str, str] | None:
        """The tags that begin and end reasoning. None: the model does not reason."""

    def plan(self, asked: Asked, prompt_end: str, vocabulary: Vocabulary) -> MessagePlan:
        """Returns the plan for one request. `prompt_end`: the text of the prompt's last tokens or, if the answer
        continues the last message, the text of that message; empty if `heeds_prompt` is False."""
