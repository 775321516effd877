"""Mistral: the token [TOOL_CALLS], then either a JSON array of calls, or one call as a name and its arguments. In the
second form, the token stands before every call, and some models write a call id.

[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Köln"}}]
[TOOL_CALLS]get_weather{"city": "Köln"}[TOOL_CALLS]get_time{}
[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Köln"}
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import content_until
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Marked, ToolForm
from services.router.chat.parsers.json_call import NAME_CHARACTERS, read_calls, read_value
from services.router.chat.tools import TOOL_NAME

_BEGIN, _CALL_ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_ID_CHARACTERS = string.ascii_letters + string.digits


def mistral_id() -> str:
    """Returns a call id of nine letters and digits, because Mistral's templates refuse ids of any other form."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))


def _read(feed: Feed, builder: MessageBuilder, _: Functions) -> Reading[None]:
    while (yield from content_until(feed, builder, (_BEGIN,))):
        yield from feed.all(SPACE)
        if (yield from feed.peek()) == "[":
            is_call = yield from read_calls(feed, builder)
        else:
            is_call = yield from _read_call(feed, builder)
        if is_call:
            feed.recorded()
        else:
            builder.no_call(feed.recorded())


def _read_call(feed: Feed, builder: MessageBuilder) -> Reading[bool]:
    name = yield from feed.all(NAME_CHARACTERS)
    if not TOOL_NAME.fullmatch(name):
        return False
    if (yield from feed.word(_CALL_ID)):
        # Drops the model's id, because it might repeat the id of an earlier call. `begin_call` makes a new one.
        yield from feed.all(NAME_CHARACTERS)
    yield from feed.word(_ARGS)
    yield from feed.all(SPACE)
    if (yield from feed.peek()) != "{":
        return False
    builder.begin_call(name)
    yield from read_value(feed, builder.arguments)
    return True


def _write(calls: list[tuple[str, str]]) -> str:
    return "".join(f"{_BEGIN}{name}{arguments}" for name, arguments in calls)


def _before_arguments(expression: Callable[[str], str]) -> str:
    return f"(({expression(_CALL_ID)} /[a-zA-Z0-9]{{9}}/)? {expression(_ARGS)})?"


_SHAPE = Marked(_BEGIN, before_arguments=_before_arguments)
MISTRAL = ToolForm(_read, _write, (_BEGIN, _CALL_ID, _ARGS), mistral_id, _SHAPE)
