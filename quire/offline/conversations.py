"""Parses conversations and tools in OpenAI's JSON format, for `LLM.chat`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire.client.options import TemplateOptions
from quire.client.results import ToolCall
from quire.client.tools import Tool
from quire.offline.prompts import Message, Prompt


def parse_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]], options: TemplateOptions
) -> list[Prompt]:
    """Parses one conversation or a list of conversations. Raises TypeError, ValueError."""
    if messages and isinstance(messages[0], Mapping):
        return [_conversation(messages, "messages", options)]
    return [_conversation(one, f"messages[{index}]", options) for index, one in enumerate(messages)]


def parse_tools(tools: Sequence[Mapping[str, Any] | Tool]) -> list[Tool]:
    """Converts tools in OpenAI's format to the `Tool` of quire.client. Raises TypeError for a tool that is not a
    function."""
    return [tool if isinstance(tool, Tool) else _tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _tool(tool: object, name: str) -> Tool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TypeError(f"{name} is not a function: use a mapping with 'type' and 'function'")
    return Tool(function["name"], function.get("description") or "", function.get("parameters"))


def _conversation(messages: object, name: str, options: TemplateOptions) -> Prompt:
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise TypeError(f"{name} is not a list of messages")
    parsed = tuple(_message(message, f"{name}[{index}]") for index, message in enumerate(messages))
    return Prompt(messages=parsed, template=options, name=name)


def _message(message: object, name: str) -> Message:
    """Converts a message from OpenAI's format to the format of quire.client. Raises TypeError, ValueError."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TypeError(f"{name} is not a message: use a mapping with 'role' and 'content'")
    calls = message.get("tool_calls") or ()
    parsed = {
        "role": message["role"],
        "content": _text(message.get("content"), f"{name}['content']", may_lack=bool(calls)),
        "name": message.get("name"),
        "reasoning": message.get("reasoning") or message.get("reasoning_content"),
        "tool_calls": [_call(call, f"{name}['tool_calls'][{index}]") for index, call in enumerate(calls)],
        "tool_call_id": message.get("tool_call_id"),
    }
    return {key: value for key, value in parsed.items() if value}


def _text(content: object, name: str, *, may_lack: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and may_lack:
        return ""
    if not isinstance(content, Sequence):
        raise TypeError(f"{name} is {type(content).__name__}: use a text, or a list of text parts")
    for index, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"{name}[{index}] is not a text part; other parts are not supported")
    return "\n".join(part["text"] for part in content)


def _call(call: object, name: str) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TypeError(f"{name} is not a tool call: use a mapping with 'id' and 'function'")
    arguments = function.get("arguments") or ""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(str(call.get("id") or ""), function["name"], text)
