"""Splits one choice's text into reasoning, content and tool calls."""

from __future__ import annotations

from dataclasses import dataclass

from services.router.chat.message import END_REASONS, EndReason, MessageDelta
from services.router.chat.message_form import MessagePlan
from services.router.chat.parsers import Feed, Functions, Ids, MessageBuilder, openai_id
from services.router.generation import ChoiceDelta


@dataclass(frozen=True, slots=True)
class TextPlan:
    """How the answers to a request are parsed. All choices of the request share one TextPlan."""

    messages: MessagePlan
    functions: Functions | None = None
    max_calls: int | None = None
    # Special tokens that the parsers need as text, but that the client must not see.
    hidden_tokens: tuple[str, ...] = ()
    new_id: Ids = openai_id


class TextParser:
    """Parses the text of one choice as its TextPlan says. Implements MessageParser (message.py)."""

    __slots__ = ("_builder", "_count", "_feed", "_reading")

    def __init__(self, plan: TextPlan) -> None:
        self._feed = Feed()
        self._builder = MessageBuilder(plan.new_id, plan.max_calls, plan.hidden_tokens)
        self._reading = plan.messages.read(self._feed, self._builder, plan.functions or {})
        self._count = plan.messages.count(self._builder)

    def parse(self, delta: ChoiceDelta) -> MessageDelta:
        feed, builder, reason = self._feed, self._builder, delta.finish_reason
        feed.push(delta.text)
        feed.is_over = reason is not None
        next(self._reading, None)
        if feed.is_over:
            builder.finish()
        if self._count is not None:
            self._count.add(delta)
        content, reasoning, calls = builder.take()
        end_reason = None if reason is None else END_REASONS[reason]
        if end_reason is EndReason.STOP and builder.has_calls:
            end_reason = EndReason.TOOL_CALLS
        is_undecided = not (content or reasoning or calls) and reason is None
        return MessageDelta(delta.index, content, reasoning, calls, is_undecided, delta.logprobs, end_reason)

    @property
    def num_reasoning_tokens(self) -> int:
        return 0 if self._count is None else self._count.num_tokens
