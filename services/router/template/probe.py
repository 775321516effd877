"""Finds out what a chat template shows, that is, which parts of a request it writes to the prompt.

The template's source does not tell this reliably: the word `tools` can stand in a literal text, and a variable can have
any name. So a probe renders a small conversation with words that no template contains, and checks whether these words
are in the prompt. Some templates refuse such a conversation, for example because they require a system message first.
The probe is then repeated after a system message; if that fails, too, the source is searched for tools and calls. A
template that refuses system messages counts as a template that does not show them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.router.template.content import ContentForm
from services.router.template.messages import THOUGHT_FIELDS, Messages

_USES_TOOLS = re.compile(r"\{[{%](?:(?![}%]\}).)*\btools\b", re.DOTALL)

_TEXT, _MORE, _KEY = "quire-probe-text", "quire-probe-more", "quire-probe-key"
# The names of functions and arguments are chosen so that none contains another, because `_has` would find the shorter
# name in the longer one.
_NAME, _ARGUMENT = "quire_probe", "quire_argument"
# The called function's name differs from the tool's name, because a prompt can contain the tool's name without the
# call.
_CALLED, _RESULT = "quire_called", "quire-probe-result"
_SYSTEM = "quire-probe-system"
_THOUGHT = "quire-probe-thought"
# As a call's id, Mistral's templates accept only nine letters or digits.
_CALL_ID = "quireprob"
_USER: dict[str, Any] = {"role": "user", "content": "Hello"}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {_ARGUMENT: {"type": "string", "description": "A word."}},
            "required": [_ARGUMENT],
        },
    },
}
_CALL = {
    "id": _CALL_ID,
    "type": "function",
    "function": {"name": _CALLED, "arguments": json.dumps({_ARGUMENT: "word"})},
}
_CALL_TURNS = [
    _USER,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": _RESULT, "tool_call_id": _CALL_ID, "name": _CALLED},
]

_UNDESCRIBED = {
    "type": "function",
    "function": {name: value for name, value in _TOOL["function"].items() if name != "description"},
}

_OTHER_CALLED, _OTHER_ID = "quire_other_call", "quireprb2"
_TWO_CALLS_TURNS = [
    _USER,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [_CALL, {**_CALL, "id": _OTHER_ID, "function": {"name": _OTHER_CALLED, "arguments": "{}"}}],
    },
    _CALL_TURNS[-1],
    {"role": "tool", "content": _RESULT, "tool_call_id": _OTHER_ID, "name": _OTHER_CALLED},
]


# A function that returns the prompt for messages and tools, or None if the template fails.
Render = Callable[[Messages, Sequence[Mapping[str, Any]] | None], str | None]


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    # Whether the template writes these to the prompt: the request's tools; earlier calls with their results; a system
    # message.
    shows_tools: bool
    shows_calls: bool
    shows_system: bool
    # Whether the template fails on a conversation without tools.
    needs_tools: bool = False


SHOWS_NOTHING = TemplateTraits(shows_tools=False, shows_calls=False, shows_system=False)


def probe_content(render: Render) -> ContentForm | None:
    """Returns the form in which a user's content reaches the prompt. Returns None if content reaches it neither as a
    string nor as parts. `render` must pass the messages to the template unchanged."""
    # The key _KEY is in the prompt only if the template prints a whole part instead of the part's text.
    parts = [{"type": "text", "text": text, _KEY: ""} for text in (_TEXT, _MORE)]
    for before in _openings():
        of_text = render([*before, {"role": "user", "content": _TEXT}], None)
        of_parts = render([*before, {"role": "user", "content": parts}], None)
        takes_text = of_text is not None and _TEXT in of_text
        takes_parts = of_parts is not None and _has(of_parts, _TEXT, _MORE) and _KEY not in of_parts
        if takes_text and takes_parts:
            return ContentForm.EITHER
        if takes_text or takes_parts:
            return ContentForm.STRING if takes_text else ContentForm.PARTS
    return None


def probe_traits(source: str, render: Render) -> TemplateTraits:
    """Returns the template's traits. `render` must try the same forms of messages that are tried for a request."""
    needs_tools = _needs_tools(render)
    of_system = render([{"role": "system", "content": _SYSTEM}, _USER], [_TOOL] if needs_tools else None)
    return TemplateTraits(
        shows_tools=_shows_tools(source, render),
        shows_calls=_shows_calls(source, render),
        shows_system=_has(of_system or "", _SYSTEM),
        needs_tools=needs_tools,
    )


def probe_thoughts(render: Render) -> bool:
    """Returns whether a template shows the reasoning of a message with calls, but fails if the message also has
    content."""
    _, called, result = _CALL_TURNS
    thoughtful = called | dict.fromkeys(THOUGHT_FIELDS, _THOUGHT)
    for before in _openings():
        if _has(render([*before, _USER, thoughtful, result], [_TOOL]) or "", _THOUGHT):
            return render([*before, _USER, thoughtful | {"content": _TEXT}, result], [_TOOL]) is None
    return False


def probe_several_calls(render: Render) -> bool:
    """Returns whether a template shows only the first of several calls in one message."""
    for before in _openings():
        if (text := render([*before, *_TWO_CALLS_TURNS], [_TOOL])) is not None:
            return _has(text, _CALLED) and not _has(text, _OTHER_CALLED)
    return False


def probe_descriptions(render: Render) -> bool:
    """Returns whether a template fails on functions without a description."""
    for before in _openings():
        if render([*before, _USER], [_TOOL]) is not None:
            return render([*before, _USER], [_UNDESCRIBED]) is None
    return False


def _shows_tools(source: str, render: Render) -> bool:
    for before in _openings():
        if (text := render([*before, _USER], [_TOOL])) is not None:
            return _has(text, _NAME, _ARGUMENT)
    return _USES_TOOLS.search(source) is not None


def _needs_tools(render: Render) -> bool:
    for before in _openings():
        if render([*before, _USER], [_TOOL]) is not None:
            return render([*before, _USER], None) is None
    return False


def _shows_calls(source: str, render: Render) -> bool:
    for before in _openings():
        # Some templates show calls only if the request has tools.
        if (text := render([*before, *_CALL_TURNS], [_TOOL])) is not None:
            return _has(text, _CALLED, _RESULT)
    return "tool_calls" in source


def _openings() -> Iterator[Messages]:
    """Yields the messages to put before those of a probe: first none, then, for templates that require one, a system
    message."""
    yield []
    yield [{"role": "system", "content": "Be kind."}]


def _has(text: str, *words: str) -> bool:
    return all(word in text for word in words)
