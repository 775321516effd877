"""DeepSeek V3, R1 and V3.1 write calls between special tokens, after the content if there is any. V3 and R1 write a
type and a code block in each call (the first example); V3.1 writes neither (the second example).

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Köln"}
    ```<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Köln"}<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>

The parser accepts both forms for every model.
"""

from __future__ import annotations

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import content_until
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Marked, ToolForm
from services.router.chat.parsers.json_call import FENCE, NAME_CHARACTERS, read_value, skip_label
from services.router.chat.tools import TOOL_NAME

_ALL_BEGIN, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_TOKENS = (_ALL_BEGIN, _ALL_END, _BEGIN, _SEPARATOR, _END)


def _read(feed: Feed, builder: MessageBuilder, _: Functions) -> Reading[None]:
    while (yield from content_until(feed, builder, (_ALL_BEGIN, _BEGIN))):
        # A call begins with _ALL_BEGIN and _BEGIN, or only with _BEGIN, because models sometimes forget _ALL_BEGIN.
        yield from feed.all(SPACE)
        yield from feed.word(_BEGIN)
        if (yield from _read_call(feed, builder)):
            feed.recorded()
            yield from feed.all(SPACE)
            yield from feed.word(_END)
            yield from feed.all(SPACE)
            yield from feed.word(_ALL_END)
        else:
            builder.no_call(feed.recorded())


def _read_call(feed: Feed, builder: MessageBuilder) -> Reading[bool]:
    name = yield from feed.all(NAME_CHARACTERS)
    if not (yield from feed.word(_SEPARATOR)):
        return False
    yield from feed.all(SPACE)
    is_fenced = False
    if (yield from feed.peek()) != "{":
        name = yield from feed.all(NAME_CHARACTERS)
        yield from feed.all(SPACE)
        is_fenced = yield from feed.word(FENCE)
        if is_fenced:
            yield from skip_label(feed)
    if not TOOL_NAME.fullmatch(name) or (yield from feed.peek()) != "{":
        return False
    builder.begin_call(name)
    yield from read_value(feed, builder.arguments)
    if is_fenced:
        yield from feed.all(SPACE)
        yield from feed.word(FENCE)
    return True


def _write_v3(calls: list[tuple[str, str]]) -> str:
    written = [
        f"{_BEGIN}function{_SEPARATOR}{name}\n{FENCE}json\n{arguments}\n{FENCE}{_END}" for name, arguments in calls
    ]
    return _ALL_BEGIN + "\n".join(written) + _ALL_END


def _write_v31(calls: list[tuple[str, str]]) -> str:
    return _ALL_BEGIN + "".join(f"{_BEGIN}{name}{_SEPARATOR}{arguments}{_END}" for name, arguments in calls) + _ALL_END


DEEPSEEK_V3 = ToolForm(_read, _write_v3, _TOKENS, shape=Marked(_ALL_BEGIN))
DEEPSEEK_V31 = ToolForm(_read, _write_v31, _TOKENS, shape=Marked(_ALL_BEGIN))
