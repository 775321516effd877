"""Converts messages to the forms that chat templates can expect, the most likely form first.

Templates disagree on three points: whether a message's content is a string or a list of parts, whether a call's
arguments are an object or JSON text, and whether missing content is null or empty. Some templates mix forms: they loop
over the parts of a user's message, but concatenate the content of a tool's message as a string. A probe of the
template, or its syntax tree, selects the first form. The other forms are tried if the template fails on the first.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from services.router.template.arguments import parsed_arguments
from services.router.template.content import ContentForm

Messages = list[dict[str, Any]]

# Names under which templates look for an assistant's earlier reasoning.
THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")

# Maximum number of forms of one conversation that are tried, until the chat template renders one.
MAX_FORMS = 10
# `prints_parts` searches a prompt for the parts of at most _MAX_ROLES roles, and for at most _PARTS_OF_ROLE parts of
# each role.
_MAX_ROLES = 8
_PARTS_OF_ROLE = 8


def forms(messages: Messages, content_form: ContentForm) -> Iterator[Messages]:
    """Yields the messages in at most MAX_FORMS forms, the most likely first. `messages`: in OpenAI's JSON form.
    `content_form`: the form of content that the template expects."""
    contents: list[Messages] = []
    for form in _with_contents(messages, content_form):
        if form not in contents:
            contents.append(form)
    return itertools.islice(_diagonal([_with_calls(form) for form in contents]), MAX_FORMS)


def num_forms(messages: Sequence[Mapping[str, Any]]) -> int:
    """Returns the maximum number of forms in which these messages are rendered (see `forms`). The number is 1 if every
    content is a string and there are no tool calls or tool messages, because templates accept the first form then."""
    return MAX_FORMS if any(_is_ambiguous(message) for message in messages) else 1


def one_call_each(messages: Messages) -> Messages:
    """Splits messages with several calls into one message per call. A call's results follow the call's message."""
    written: Messages = []
    rest = list(reversed(messages))
    while rest:
        message = rest.pop()
        first, *others = message.get("tool_calls") or [None]
        if not others:
            written.append(message)
            continue
        results: dict[str, Messages] = {}
        while rest and rest[-1]["role"] == "tool":
            result = rest.pop()
            results.setdefault(result.get("tool_call_id", ""), []).append(result)
        said = {key: value for key, value in message.items() if key not in THOUGHT_FIELDS} | {"content": ""}
        for call in (first, *others):
            written.append({**(message if call is first else said), "tool_calls": [call]})
            written += results.pop(call.get("id", ""), [])
        for of_another in results.values():
            written += of_another
    return written


def prints_parts(text: str, messages: Messages) -> bool:
    """Returns whether a prompt shows a content part as a Python or JSON value instead of its text. This happens if the
    template prints content without a test of its type. A value that also stands in a message's text does not
    count."""
    values = {
        written for part in _first_parts(messages) for written in (str(part), json.dumps(part, ensure_ascii=False))
    }
    printed = [written for written in values if written in text]
    if not printed:
        return False
    contents = (message.get("content") for message in messages)
    # The contents are joined once, not once per value, so that the time stays linear in the number of messages.
    quotable = "\0".join(join_parts(content) if isinstance(content, list) else content or "" for content in contents)
    return any(written not in quotable for written in printed)


def _first_parts(messages: Messages) -> list[Mapping[str, Any]]:
    """Returns the first content part of up to _PARTS_OF_ROLE messages of each role, for up to _MAX_ROLES roles.
    `prints_parts` needs no more: a template that prints a part also prints the message's first part, and a template
    treats all messages of one role alike."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for message in messages:
        content, role = message.get("content"), message["role"]
        if isinstance(content, list) and content and (role in found or len(found) < _MAX_ROLES):
            parts = found.setdefault(role, [])
            if len(parts) < _PARTS_OF_ROLE:
                parts.append(content[0])
    return [part for parts in found.values() for part in parts]


def _is_ambiguous(message: Mapping[str, Any]) -> bool:
    return not isinstance(message.get("content"), str) or bool(message.get("tool_calls")) or message["role"] == "tool"


def _diagonal(rows: Sequence[Iterator[Messages]]) -> Iterator[Messages]:
    """Interleaves the items of several rows. Each round opens one more row, and takes one item of every open row."""
    open_rows: list[Iterator[Messages]] = []
    left = iter(rows)
    while True:
        if (row := next(left, None)) is not None:
            open_rows.append(row)
        elif not open_rows:
            return
        for row in tuple(open_rows):
            if (item := next(row, None)) is None:
                open_rows.remove(row)
            else:
                yield item


def join_parts(parts: Sequence[Mapping[str, Any]]) -> str:
    """Joins the texts of a message's content parts with line breaks, as vLLM does."""
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


def _with_contents(messages: Messages, content_form: ContentForm) -> Iterator[Messages]:
    match content_form:
        case ContentForm.STRING:
            first = [_as_text(message) for message in messages]
        case ContentForm.PARTS:
            first = [_as_parts(message) for message in messages]
        case ContentForm.EITHER:
            first = messages
    yield first
    # Most templates have a separate branch for tool messages. It often expects their content in another form than the
    # branches for other messages do.
    yield [_as_text(message) if message["role"] == "tool" else message for message in first]
    yield [message if message["role"] == "user" else _as_text(message) for message in first]
    yield [_as_text(message) for message in messages]
    yield [_as_parts(message) for message in messages]


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return message | {"content": join_parts(content)} if isinstance(content, list) else message


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _with_calls(messages: Messages) -> Iterator[Messages]:
    """Yields variants of the messages. If there are calls, there are three variants of their arguments: the parsed
    value, the JSON text, and the parsed value if it is an object, else {}. If a message lacks content, yields each
    variant twice: as it is, and with an empty string as the missing content."""
    variants = [[_with_arguments(message, _value) for message in messages]]
    if any(message.get("tool_calls") for message in messages):
        variants += [messages, [_with_arguments(message, _object) for message in messages]]
    lacks_content = any(message.get("content") is None for message in messages)
    for variant in variants:
        yield variant
        if lacks_content:
            yield [_with_content(message) for message in variant]


def _with_content(message: dict[str, Any]) -> dict[str, Any]:
    return message if message.get("content") is not None else message | {"content": ""}


def _with_arguments(message: dict[str, Any], read: Callable[[str], Any]) -> dict[str, Any]:
    """Returns the message with the arguments of its calls parsed by `read`. In OpenAI's API the arguments are text, but
    most templates expect objects."""
    if not message.get("tool_calls"):
        return message
    calls = copy.deepcopy(message["tool_calls"])
    for call in calls:
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            function["arguments"] = read(function["arguments"])
    return message | {"tool_calls": calls}


def _value(arguments: str) -> Any:
    """Returns the parsed arguments. If they are not valid JSON, returns the complete part of a truncated object, and {}
    for any other text. Imports pydantic_core only for invalid JSON, because it might not be installed if the router
    serves only the typed gRPC APIs."""
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return parsed_arguments(arguments)


def _object(arguments: str) -> dict[str, Any]:
    """Returns the parsed arguments if they are an object, and {} otherwise."""
    value = _value(arguments)
    return value if isinstance(value, dict) else {}
