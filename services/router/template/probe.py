"""What a chat template makes of a conversation, found by rendering small ones.

A template's source tells little of what it shows. It may name tools in a text only, or assign a content to a variable
that holds calls elsewhere. So each question is a conversation with words that no template has, and the answer is
whether the words are in the prompt. A template may refuse such a conversation, say because its first message must be a
system's: then its source is read instead. A template that refuses the system message is taken to show none.
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
# None is part of another.
_NAME, _ARGUMENT = "quire_probe", "quire_argument"
# Not the tool's name: that is in the prompt already.
_CALLED, _RESULT = "quire_called", "quire-probe-result"
_SYSTEM = "quire-probe-system"
_THOUGHT = "quire-probe-thought"
# Mistral's templates take ids of nine letters and digits only.
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


# The prompt of messages and tools; None where the template fails on them.
Render = Callable[[Messages, Sequence[Mapping[str, Any]] | None], str | None]


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    # Whether a prompt has the request's tools, the calls of earlier turns with their results, and a system message.
    shows_tools: bool
    shows_calls: bool
    shows_system: bool
    # Whether it fails on a conversation without tools.
    needs_tools: bool = False


SHOWS_NOTHING = TemplateTraits(shows_tools=False, shows_calls=False, shows_system=False)


def probe_content(render: Render) -> ContentForm | None:
    """The form of a user's content that reaches the prompt. None if neither a text nor parts reach the prompt. `render`
    gives the template the messages unchanged."""
    # A part that is printed as a value shows its keys.
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
    """`render`: it tries the forms that messages may have, as it does for a request."""
    needs_tools = _needs_tools(render)
    of_system = render([{"role": "system", "content": _SYSTEM}, _USER], [_TOOL] if needs_tools else None)
    return TemplateTraits(
        shows_tools=_shows_tools(source, render),
        shows_calls=_shows_calls(source, render),
        shows_system=_has(of_system or "", _SYSTEM),
        needs_tools=needs_tools,
    )


def probe_thoughts(render: Render) -> bool:
    """Whether a template shows what an assistant had thought before its calls, and refuses a content beside it."""
    _, called, result = _CALL_TURNS
    thoughtful = called | dict.fromkeys(THOUGHT_FIELDS, _THOUGHT)
    for before in _openings():
        if _has(render([*before, _USER, thoughtful, result], [_TOOL]) or "", _THOUGHT):
            return render([*before, _USER, thoughtful | {"content": _TEXT}, result], [_TOOL]) is None
    return False


def probe_several_calls(render: Render) -> bool:
    """Whether a template shows the first one alone of several calls in one message."""
    for before in _openings():
        if (text := render([*before, *_TWO_CALLS_TURNS], [_TOOL])) is not None:
            return _has(text, _CALLED) and not _has(text, _OTHER_CALLED)
    return False


def probe_descriptions(render: Render) -> bool:
    """Whether a template fails on functions for want of a description."""
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
        # Some templates show calls only beside the tools.
        if (text := render([*before, *_CALL_TURNS], [_TOOL])) is not None:
            return _has(text, _CALLED, _RESULT)
    return "tool_calls" in source


def _openings() -> Iterator[Messages]:
    """What a probe's turns may begin with: nothing, or a system message, where the template wants one."""
    yield []
    yield [{"role": "system", "content": "Be kind."}]


def _has(text: str, *words: str) -> bool:
    return all(word in text for word in words)
