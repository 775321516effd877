"""FunctionGemma and Gemma 4: calls between special tokens. Arguments look like JSON, but keys have no quotes, and
a special token (<escape> or <|"|>) stands at each end of a string instead of a quotation mark.

    <start_function_call>call:get_weather{city:<escape>Köln<escape>,days:[1,2]}<end_function_call>
    <|tool_call>call:get_weather{city:<|"|>Köln<|"|>,days:[1,2]}<tool_call|>

FunctionGemma quotes values of any type, so the function's schema determines an argument's type. The model can leave out
commas. It can also leave out the ends of strings, arrays and objects directly before the token that ends the call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.router.chat.parsers.builder import MessageBuilder
from services.router.chat.parsers.content import read_marked
from services.router.chat.parsers.feed import SPACE, Feed, Reading
from services.router.chat.parsers.form import Functions, Marked, ToolForm
from services.router.chat.parsers.json_call import NAME_CHARACTERS, Emit
from services.router.chat.parsers.reasoning import ReasoningForm
from services.router.chat.parsers.schema_values import STRING, ArgumentTypes, ArgumentWriter, as_json
from services.router.chat.tools import TOOL_NAME
from services.router.grammar import literal_regex
from services.router.template import parsed_arguments

_CALL = "call:"
_KEY = re.compile(r"[^:,{}\[\]<]+")
_BARE_KEY = re.compile(r"\w+")
_BARE = re.compile(r"[^,}\]<]+")
# Every token of these forms begins with "<".
_PLAIN = re.compile(r"[^<]+")
_CLOSERS = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    """Form of calls of FunctionGemma or Gemma 4, which differ only in their tokens."""

    begin: str
    end: str
    quote: str

    def form(self) -> ToolForm:
        return ToolForm(self.read, self.write, self._tokens, shape=Marked(self.begin, self.rules))

    @property
    def _tokens(self) -> tuple[str, ...]:
        return (self.begin, self.end, self.quote)

    def read(self, feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
        types = ArgumentTypes(functions)
        yield from read_marked(feed, builder, {self.begin: self.end}, lambda _: self._read_call(feed, builder, types))

    def _read_call(self, feed: Feed, builder: MessageBuilder, types: ArgumentTypes) -> Reading[bool]:
        if not (yield from feed.word(_CALL)):
            return False
        name = yield from feed.all(NAME_CHARACTERS)
        if not TOOL_NAME.fullmatch(name) or not (yield from feed.word("{")):
            return False
        # Both lists have one entry per open object or array: its closing bracket, and the text to write before its next
        # item.
        closers, before = ["}"], [""]
        types_here = STRING
        has_begun = False
        while closers:
            yield from feed.all(SPACE)
            character = yield from feed.peek()
            if not character:
                return has_begun
            if character == "<" and (yield from self._call_is_over(feed)):
                if not has_begun:
                    builder.begin_call(name)
                    builder.arguments("{")
                builder.arguments("".join(reversed(closers)))
                return True
            if character == "<" and feed.is_cut(*self._tokens):
                feed.take(feed.num_left)
                return has_begun
            if character == ",":
                feed.take()
                continue
            is_end = character in "}]"
            key = ""
            if not is_end and closers[-1] == "}":
                key = yield from self._read_key(feed)
                if not (yield from feed.word(":")):
                    # The text might end within a key. The incomplete key is dropped, and a call without any complete
                    # key is not a call.
                    if feed.is_cut(*self._tokens) and not (yield from self._call_is_over(feed)):
                        feed.take(feed.num_left)
                        return has_begun
                    if not key:
                        feed.take()
                        continue
            if not has_begun:
                builder.begin_call(name)
                builder.arguments("{")
                has_begun = True
            if is_end:
                feed.take()
                before.pop()
                builder.arguments(closers.pop())
                continue
            named = f"{json.dumps(key, ensure_ascii=False)}: " if closers[-1] == "}" else ""
            builder.arguments(f"{before[-1]}{named}")
            before[-1] = ", "
            if len(closers) == 1:
                types_here = types.of(name, key)
            opened = yield from self._read_value(feed, builder.arguments, types_here if len(closers) == 1 else STRING)
            if opened:
                closers.append(_CLOSERS[opened])
                before.append("")
        return True

    def _read_key(self, feed: Feed) -> Reading[str]:
        if (yield from feed.word(self.quote)):
            pieces: list[str] = []
            yield from self._read_string(feed, pieces.append)
            key = "".join(pieces)
        else:
            key = (yield from self._read_bare(feed, _KEY)).strip()
        yield from feed.all(SPACE)
        return key

    def _read_value(self, feed: Feed, emit: Emit, types: frozenset[str]) -> Reading[str]:
        """Takes a value, emits it as JSON and returns an empty string. Of an object or array, takes, emits and returns
        only the opening bracket. `types`: JSON types that a quoted value can have."""
        yield from feed.all(SPACE)
        if (yield from feed.word(self.quote)):
            writer = ArgumentWriter(emit, types)
            yield from self._read_string(feed, writer.write)
            writer.close()
            return ""
        character = yield from feed.peek()
        if character and character in _CLOSERS:
            emit(feed.take())
            return character
        # The types of the schema are not needed here: the form of an unquoted value, such as a number, shows its type.
        emit(as_json((yield from self._read_bare(feed, _BARE)).strip(), frozenset()))
        return ""

    def _read_bare(self, feed: Feed, characters: re.Pattern[str]) -> Reading[str]:
        """Takes text that consists of `characters`, up to the next token of this form. A "<" that begins no such token
        belongs to the text."""
        pieces: list[str] = []
        while character := (yield from feed.peek()):
            if character == "<":
                if (yield from feed.ahead(self.quote)) or (yield from self._call_is_over(feed)):
                    break
                if feed.is_cut(*self._tokens):
                    break
                pieces.append(feed.take())
            elif piece := feed.here(characters):
                pieces.append(piece)
            else:
                break
        return "".join(pieces)

    def _read_string(self, feed: Feed, emit: Emit) -> Reading[None]:
        """Takes a string and the quote token that closes it. If the quote token is missing, the string ends before the
        call's end token (see `_string_is_over`)."""
        while character := (yield from feed.peek()):
            if character == "<":
                if (yield from feed.word(self.quote)) or (yield from self._string_is_over(feed)):
                    return
                if feed.is_cut(*self._tokens):
                    return
            emit(feed.here(_PLAIN) or feed.take())

    def _call_is_over(self, feed: Feed) -> Reading[bool]:
        return (yield from feed.ahead(self.end)) or (yield from feed.ahead(self.begin))

    def _string_is_over(self, feed: Feed) -> Reading[bool]:
        """Returns whether the call's end token comes next and ends the string and the call. It does so only if the text
        ends or another call begins after it. Otherwise the token is part of the string."""
        if not (yield from feed.word(self.end)):
            return False
        taken = self.end + (yield from feed.all(SPACE))
        is_over = not (yield from feed.peek()) or (yield from feed.ahead(self.begin)) or feed.is_cut(self.begin)
        feed.put_back(taken)
        return is_over

    def write(self, calls: list[tuple[str, str]]) -> str:
        return "".join(
            f"{self.begin}{_CALL}{name}{self._written(parsed_arguments(arguments))}{self.end}"
            for name, arguments in calls
        )

    def _written(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, list):
            return f"[{','.join(map(self._written, value))}]"
        if isinstance(value, dict):
            keys = {key: key if _BARE_KEY.fullmatch(key) else self._written(key) for key in value}
            return f"{{{','.join(f'{keys[key]}:{self._written(item)}' for key, item in value.items())}}}"
        return json.dumps(value)

    def rules(self, expression: Callable[[str], str], several: bool) -> str:
        """Returns the grammar rules. A string ends with the quote token, or with that token's text."""
        quote = expression(self.quote)
        return (
            f"calls: call{'+' if several else ''}\n"
            f"call: {expression(self.begin + _CALL)} name object {expression(self.end)}\n"
            'object: "{" (pair ("," pair)*)? "}"\n'
            'pair: key ":" value\n'
            r"key: /\w+/ | string"
            "\n"
            "value: string | object | array | SCALAR\n"
            'array: "[" (value ("," value)*)? "]"\n'
            f"string: {quote} (ended | /(?s:.*)/ {quote})\n"
            f"ended[lazy]: /(?s:.*){literal_regex(self.quote)}/\n"
            r"SCALAR: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null/"
            "\n"
        )


FUNCTIONGEMMA = GemmaCalls("<start_function_call>", "<end_function_call>", "<escape>").form()
GEMMA4 = GemmaCalls("<|tool_call>", "<tool_call|>", '<|"|>').form()
GEMMA4_THOUGHT = ReasoningForm("<|channel>", "<channel|>", label="thought\n")
