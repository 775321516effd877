"""An assistant's message while it is generated, split into content, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from services.router.dispatch import FinishReason
from services.router.generation import ChoiceDelta, Usage
from services.router.logprobs import PromptLogprob, PromptLogprobs, TokenLogprob, TokenLogprobs


class EndReason(Enum):
    """Why a message ended. The values are those of OpenAI's `finish_reason`."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(slots=True)
class ToolCallDelta:
    """New part of one tool call. The first delta of a call has the call's id and name, and possibly no arguments yet.
    Later deltas have only the index and arguments."""

    # Index of the call within its message, from 0.
    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


@dataclass(slots=True)
class MessageDelta:
    """New part of one choice's message."""

    choice_index: int
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    # Whether the choice goes on, but the delta has no content, reasoning or calls. The parser then possibly holds back
    # text that can be content or markup.
    is_undecided: bool = False
    # Logprobs of every new token, including tokens whose text is held back or dropped.
    logprobs: Sequence[TokenLogprob] = ()
    end_reason: EndReason | None = None
    # `prompt_token_ids`: token ids of the request's prompt. ChoiceDelta explains the other fields below.
    stop_reason: str | int | None = None
    token_ids: Sequence[int] = ()
    prompt_token_ids: Sequence[int] = ()
    prompt_logprobs: Sequence[PromptLogprob] | None = None
    usage: Usage | None = None


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    # JSON, as the model wrote it.
    arguments: str


class Message:
    """One choice's message, complete after the last delta is added."""

    __slots__ = (
        "_arguments", "_calls", "_content", "_reasoning", "end_reason", "logprobs", "prompt_logprobs",
        "prompt_token_ids", "stop_reason", "token_ids",
    )  # fmt: skip

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        # `_calls` has the (id, name) of each call, `_arguments` the pieces of each call's arguments.
        self._calls: list[tuple[str, str]] = []
        self._arguments: list[list[str]] = []
        self.logprobs = TokenLogprobs()
        self.end_reason: EndReason | None = None
        self.stop_reason: str | int | None = None
        self.token_ids: list[int] = []
        self.prompt_token_ids: Sequence[int] = ()
        self.prompt_logprobs: PromptLogprobs | None = None

    def add(self, delta: MessageDelta) -> None:
        self._content.append(delta.content)
        self._reasoning.append(delta.reasoning)
        self.logprobs += delta.logprobs
        self.end_reason, self.stop_reason = delta.end_reason, delta.stop_reason
        self.prompt_token_ids = delta.prompt_token_ids
        self.token_ids += delta.token_ids
        if delta.prompt_logprobs is not None:
            if self.prompt_logprobs is None:
                self.prompt_logprobs = PromptLogprobs()
            self.prompt_logprobs += delta.prompt_logprobs
        for call in delta.tool_calls:
            if call.index == len(self._calls):
                self._calls.append((call.id, call.name))
                self._arguments.append([])
            self._arguments[call.index].append(call.arguments)

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def tool_calls(self) -> list[ToolCall]:
        pairs = zip(self._calls, self._arguments, strict=True)
        return [ToolCall(call_id, name, "".join(pieces)) for (call_id, name), pieces in pairs]


class MessageParser(Protocol):
    """Splits one choice's text into content, reasoning and calls."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of reasoning tokens so far."""

    def parse(self, delta: ChoiceDelta) -> MessageDelta: ...


END_REASONS = {FinishReason.STOP: EndReason.STOP, FinishReason.LENGTH: EndReason.LENGTH}


class PlainParser:
    """A MessageParser that treats all text as content."""

    __slots__ = ()
    num_reasoning_tokens = 0

    def parse(self, delta: ChoiceDelta) -> MessageDelta:
        return MessageDelta(
            delta.index,
            delta.text,
            logprobs=delta.logprobs,
            end_reason=None if delta.finish_reason is None else END_REASONS[delta.finish_reason],
        )
