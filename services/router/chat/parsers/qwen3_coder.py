"""Qwen3-Coder and Qwen3.5: each call is tags, and its arguments are text whose types only the function's schema knows.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Köln
    </parameter>
    </function>
    </tool_call>

Strings are passed on as they come; every other argument once it is there, as a string too where it is no JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from services.router.chat.arguments import parsed_arguments
from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import content_until
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Marked, ToolForm
from services.router.chat.parsers.json_call import NAME

_BEGIN, _END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_KEY = re.compile(r"[^>\n]+")
_PLAIN = re.compile(r"[^<\n]+")


def _read(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
    while (yield from content_until(feed, builder, (_BEGIN,))):
        yield from feed.all(SPACE)
        if (yield from _read_call(feed, builder, functions)):
            feed.recorded()
            yield from feed.all(SPACE)
            yield from feed.word(_END)
        else:
            builder.no_call(feed.recorded())


def _read_call(feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[bool]:
    if not (yield from feed.word(_FUNCTION)):
        return False
    name = yield from feed.all(_NAME)
    if not NAME.fullmatch(name) or not (yield from feed.word(">")):
        return False
    schema = functions.get(name) or {}
    separator = "{"
    while True:
        yield from feed.all(SPACE)
        if not (yield from feed.word(_PARAMETER)):
            break
        key = yield from feed.all(_KEY)
        if not (yield from feed.word(">")) and separator == "{" and feed.is_cut(">"):
            return False
        if separator == "{":
            builder.begin_call(name)
        builder.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        separator = ", "
        if _is_string(schema, key):
            builder.arguments('"')
            yield from _read_value(feed, lambda text: builder.arguments(json.dumps(text, ensure_ascii=False)[1:-1]))
            builder.arguments('"')
        else:
            pieces: list[str] = []
            yield from _read_value(feed, pieces.append)
            builder.arguments(_as_json("".join(pieces)))
    has_ended = yield from feed.word(_FUNCTION_END)
    if separator == "{":
        # A call that was cut before its arguments is none.
        if not has_ended and feed.is_cut(_PARAMETER, _FUNCTION_END):
            return False
        builder.begin_call(name)
    builder.arguments("{}" if separator == "{" else "}")
    return True


def _read_value(feed: Feed, emit: Callable[[str], None]) -> Reading[None]:
    """To the closing tag, without the line breaks beside the tags."""
    yield from feed.word("\n")
    line_break = ""
    while character := (yield from feed.peek()):
        if character == "<" and (yield from feed.word(_PARAMETER_END)):
            return
        emit(line_break)
        line_break = ""
        if character == "\n":
            line_break = feed.take()
        else:
            emit(feed.here(_PLAIN) or feed.take())
    emit(line_break)


def _is_string(schema: Mapping[str, Any], key: str) -> bool:
    properties = schema.get("properties")
    described = properties.get(key) if isinstance(properties, Mapping) else None
    return isinstance(described, Mapping) and described.get("type") == "string"


def _as_json(text: str) -> str:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _write(calls: list[tuple[str, str]]) -> str:
    return "\n".join(
        f"{_BEGIN}\n{_FUNCTION}{name}>\n{_parameters(arguments)}{_FUNCTION_END}\n{_END}" for name, arguments in calls
    )


def _parameters(arguments: str) -> str:
    values = parsed_arguments(arguments)
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in values.items()
    }
    return "".join(f"{_PARAMETER}{key}>\n{text}\n{_PARAMETER_END}\n" for key, text in texts.items())


def _rules(expression: Callable[[str], str], several: bool) -> str:
    """Values are any text: their types are nobody's but the function's."""
    begin, end = expression(f"{_BEGIN}\n{_FUNCTION}"), expression(f"{_FUNCTION_END}\n{_END}")
    further = r'("\n" call)*' if several else ""
    return (
        f"calls: call {further}\n"
        rf'call: {begin} name ">\n" parameter* {end}'
        "\n"
        rf'parameter: {expression(_PARAMETER)} KEY value "\n"'
        "\n"
        r"KEY: /[^>\n]+/"
        "\n"
        r"value[lazy]: />\n(?s:.*)<\/parameter>/"
        "\n"
    )


QWEN3_CODER = ToolForm(_read, _write, (_BEGIN, _END), shape=Marked(_BEGIN, _rules))
