"""Plays texts to the parsers of one choice, in pieces."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from collections.abc import Sequence
from typing import Any

from services.router.chat.message import Message
from services.router.chat.parsers.form import Functions, Read
from services.router.chat.parsers.reasoning import ReasoningForm
from services.router.chat.tagged_messages import TaggedPlan
from services.router.chat.text_parser import TextParser, TextPlan
from services.router.dispatch.work import FinishReason
from services.router.generation.choice_delta import ChoiceDelta

FUNCTIONS: dict[str, dict[str, Any] | None] = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}},
    "get_time": None,
}


def tagged(
    reasoning: ReasoningForm | None = None,
    calls: Read | None = None,
    *,
    max_calls: int | None = None,
    hidden_tokens: tuple[str, ...] = (),
    functions: Functions | None = None,
    **plan: Any,
) -> TextPlan:
    """`plan`: further fields of a TaggedPlan."""
    messages = TaggedPlan(reasoning, calls, **plan)
    return TextPlan(messages, functions, max_calls, hidden_tokens)


def play(
    plan: TextPlan,
    pieces: Sequence[str],
    reason: FinishReason = FinishReason.STOP,
    functions: Functions = FUNCTIONS,
) -> Message:
    """The message that these pieces make; each piece stands for one token, and a last one for the end."""
    parser = TextParser(dataclasses.replace(plan, new_id=lambda: "id", functions=functions))
    message = Message()
    for piece in pieces:
        message.add(parser.parse(ChoiceDelta(0, piece, [1], [], None)))
    message.add(parser.parse(ChoiceDelta(0, "", [2], [], reason)))
    return message


def sizes_taken(plan: TextPlan, pieces: Sequence[str]) -> list[int]:
    """For each piece, how many bytes its reading took for a while or for good: more than a few thousand are a copy of
    what came before."""
    parser = TextParser(plan)
    sizes = []
    tracemalloc.start()
    try:
        for piece in pieces:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            parser.parse(ChoiceDelta(0, piece, [1], [], None))
            sizes.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return sizes


def said(message: Message) -> tuple[str, str, list[tuple[str, str]]]:
    """Content, reasoning, and each call's name and arguments."""
    return message.content, message.reasoning, [(call.name, call.arguments) for call in message.tool_calls]


def calls_of(message: Message) -> list[tuple[str, Any]]:
    """The same calls, with their arguments parsed."""
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
