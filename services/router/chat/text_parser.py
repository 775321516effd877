"""One choice's text told apart: reasoning first, then content and calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.router.chat.message import END_REASONS, EndReason, MessageDelta
from services.router.chat.parsers.builder import Ids, MessageBuilder
from services.router.chat.parsers.content import pass_through
from services.router.chat.parsers.feed import Feed, Reading
from services.router.chat.parsers.form import Functions, openai_id
from services.router.chat.parsers.reasoning import ReasoningForm, read_reasoning
from services.router.generation import ChoiceDelta


@dataclass(frozen=True, slots=True)
class TextPlan:
    """What a request's texts consist of; shared by its choices."""

    # None: no reasoning, and no calls.
    reasoning: ReasoningForm | None = None
    calls: Callable[[Feed, MessageBuilder, Functions], Reading[None]] | None = None
    # Whether a text begins in the middle of reasoning.
    is_inside: bool = False
    # The token that ends reasoning, where it is one; and how any token reads, to find the last one where it is not.
    end_token_id: int | None = None
    token_text: Callable[[int], str] = str
    functions: Functions | None = None
    max_calls: int | None = None
    # What marks its parts.
    tags: tuple[str, ...] = ()
    # Special tokens that only the parsers see.
    hidden_tokens: tuple[str, ...] = ()
    new_id: Ids = openai_id

    @property
    def is_plain(self) -> bool:
        return self.reasoning is None and self.calls is None


class TextParser:
    """A MessageParser."""

    __slots__ = ("_builder", "_feed", "_num_reasoning_tokens", "_plan", "_reading")

    def __init__(self, plan: TextPlan) -> None:
        self._plan = plan
        self._feed = Feed()
        self._builder = MessageBuilder(plan.new_id, plan.max_calls, plan.hidden_tokens)
        self._reading = self._read()
        self._num_reasoning_tokens = 0

    def parse(self, delta: ChoiceDelta) -> MessageDelta:
        feed, builder, reason = self._feed, self._builder, delta.finish_reason
        may_reason = self._plan.reasoning is not None and not builder.reasoning_is_over
        feed.push(delta.text)
        feed.is_over = reason is not None
        next(self._reading, None)
        if feed.is_over:
            builder.finish()
        if may_reason:
            self._count(delta)
        content, reasoning, calls = builder.take()
        end_reason = None if reason is None else END_REASONS[reason]
        if end_reason is EndReason.STOP and builder.has_calls:
            end_reason = EndReason.TOOL_CALLS
        is_undecided = not (content or reasoning or calls) and reason is None
        return MessageDelta(delta.index, content, reasoning, calls, is_undecided, delta.logprobs, end_reason)

    @property
    def num_reasoning_tokens(self) -> int:
        """Up to and including the one that ends the reasoning."""
        return self._num_reasoning_tokens if self._builder.has_reasoned else 0

    def _read(self) -> Reading[None]:
        plan = self._plan
        if plan.reasoning is not None:
            yield from read_reasoning(self._feed, self._builder, plan.reasoning, plan.is_inside)
        if plan.calls is not None:
            yield from plan.calls(self._feed, self._builder, plan.functions or {})
        yield from pass_through(self._feed, self._builder)

    def _count(self, delta: ChoiceDelta) -> None:
        """Text may lag behind its tokens, so the token that ends reasoning is looked for, where it is one."""
        end, token_ids, builder = self._plan.end_token_id, delta.token_ids, self._builder
        if end is not None and end in token_ids:
            self._num_reasoning_tokens += token_ids.index(end) + 1
            builder.reasoning_is_over = True
            return
        num_chars = len(delta.text) - builder.num_left_by_reasoning
        for token_id in token_ids:
            if builder.reasoning_is_over and num_chars <= 0:
                return
            self._num_reasoning_tokens += 1
            num_chars -= len(self._plan.token_text(token_id))
