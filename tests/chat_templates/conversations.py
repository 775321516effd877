"""Conversations that a template may be given, in the form of OpenAI's API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.router.chat.tools import Tool

TOOLS = (
    Tool(
        "get_weather",
        "The weather in a city.",
        {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name."}},
            "required": ["city"],
        },
    ),
)


@dataclass(frozen=True, slots=True)
class Conversation:
    messages: tuple[dict[str, Any], ...]
    tools: tuple[Tool, ...] = ()
    # What a prompt must have of it.
    words: tuple[str, ...] = ()


_SYSTEM = {"role": "system", "content": "Answer in Latin."}
_ASKED = {"role": "user", "content": "Is it raining in Bonn?"}
_ANSWERED = {"role": "assistant", "content": "Non pluit."}
_THEN = {"role": "user", "content": "And in Rome?"}
_PARTS = {"role": "user", "content": [{"type": "text", "text": "Is it raining in Bonn?"}]}
_CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "a1b2c3d4e",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Bonn am Rhein"}'},
        }
    ],
}
_RESULT = {"role": "tool", "tool_call_id": "a1b2c3d4e", "name": "get_weather", "content": "Dry, 21 degrees."}
_TEXTS = ("raining in Bonn?",)
_TURNS = (*_TEXTS, "Non pluit.", "And in Rome?")
# The calls have the tool's name, too: only its description says that the prompt has the tool.
_CALLS = ("Bonn am Rhein", "Dry, 21 degrees.", "get_weather", TOOLS[0].description)

CONVERSATIONS = {
    "user": Conversation((_ASKED,), (), _TEXTS),
    "parts": Conversation((_PARTS,), (), _TEXTS),
    "system": Conversation((_SYSTEM, _ASKED), (), (*_TEXTS, "Latin")),
    "turns": Conversation((_ASKED, _ANSWERED, _THEN), (), _TURNS),
    "tools": Conversation((_ASKED,), TOOLS, (*_TEXTS, "get_weather", "city")),
    "system+tools": Conversation((_SYSTEM, _ASKED), TOOLS, (*_TEXTS, "Latin", "get_weather", "city")),
    "turns+tools": Conversation((_ASKED, _ANSWERED, _THEN), TOOLS, (*_TURNS, "get_weather", "city")),
    "calls": Conversation((_SYSTEM, _ASKED, _CALLED, _RESULT), TOOLS, (*_TEXTS, "Latin", *_CALLS)),
}
