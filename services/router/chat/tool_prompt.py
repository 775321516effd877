"""Tool prompts for models whose chat template does not support tools.

The system message describes the tools. Earlier calls and their results become text, so that every model can use tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from services.router.chat.parsers import ToolForm
from services.router.chat.tools import Tool
from services.router.template import text_of

_EXAMPLE = ("NAME", '{"ARGUMENT": "VALUE"}')


def describe_tools(tools: Sequence[Tool], form: ToolForm | None, *, parallel: bool) -> str:
    """Returns the description of the tools. `form`: the form of calls that the text explains; None: the text explains
    no form."""
    functions = [json.dumps(tool.to_template()["function"], ensure_ascii=False) for tool in tools]
    lines = ["You can call these functions. Each is described by a JSON schema of its parameters:", *functions]
    if form is not None:
        lines += ["", "To call one, answer with nothing but the call, in this form:", form.write([_EXAMPLE])]
        if parallel:
            lines += ["or, to call several at once:", form.write([_EXAMPLE, _EXAMPLE])]
        lines.append("Then you are told what it returned. Where no function helps, just answer.")
    return "\n".join(lines)


def with_instructions(messages: Sequence[dict[str, Any]], text: str, *, shows_system: bool) -> list[dict[str, Any]]:
    """Returns the messages with `text` at the end of the system message, which is added if there is none. If the
    template does not render system messages (`shows_system` is False), the first user message begins with the system
    message and `text` instead."""
    system, rest = [], list(messages)
    if rest[0]["role"] in ("system", "developer"):
        system.append(rest.pop(0))
    instructions = "\n\n".join(filter(None, (*map(text_of, system), text)))
    if not shows_system and rest and rest[0]["role"] == "user":
        return [{**rest[0], "content": f"{instructions}\n\n{text_of(rest[0])}"}, *rest[1:]]
    own: dict[str, Any] = system[0] if system else {"role": "system"}
    return [{**own, "content": instructions}, *rest]


def calls_as_text(messages: Iterable[dict[str, Any]], form: ToolForm) -> list[dict[str, Any]]:
    """Returns the messages with each call written as text in the model's form, and each result as a user message. Joins
    results that follow each other, and the user message after them, into one user message, because templates without
    tool support often require that user and assistant messages alternate."""
    written: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    # Results that follow each other. They are joined only once, so that the time stays linear in their number.
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            name = names.get(message.get("tool_call_id", "")) or message.get("name", "the call")
            results.append(f"Result of {name}:\n{text_of(message)}")
            continue
        is_answered = bool(results) and message["role"] == "user"
        if is_answered:
            # The results become a user message. Templates refuse two user messages in a row, so the text of the next
            # user message is added to the results.
            results.append(text_of(message))
        if results:
            written.append(_user_s(results))
            results = []
        if not is_answered:
            written.append(_with_calls_in_text(message, form, names))
    return [*written, _user_s(results)] if results else written


def _user_s(texts: Sequence[str]) -> dict[str, Any]:
    return {"role": "user", "content": "\n\n".join(texts)}


def _with_calls_in_text(message: dict[str, Any], form: ToolForm, names: dict[str, str]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    names |= {call.get("id", ""): call["function"]["name"] for call in calls}
    text = form.write([(call["function"]["name"], call["function"]["arguments"] or "{}") for call in calls])
    content = "\n".join(filter(None, (text_of(message), text)))
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}
