"""Grammar of calls in the model's own form, for requests where the model may call a tool instead of writing a structure
or besides writing text.

The grammar restricts names to the request's tools. Arguments of a strict tool match its schema. Arguments of other
tools can be any JSON object, so the size and keywords of their schemas do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.router.chat.answer_grammar import CallRules, Tags, quoted, schema_grammar
from services.router.chat.parsers import Marked, Objects, ToolForm
from services.router.chat.tools import Tool
from services.router.grammar import literal_regex

# JSON schemas of strict tools' arguments, by tool name. Each is checked, and contains all definitions that it refers
# to.
Schemas = Mapping[str, Mapping[str, Any]]

# Placeholders for a call's name and arguments in the text that `form.write` returns.
_NAME, _ARGUMENTS = "\x00", "\x01"
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
# Regular expressions for messages that begin like a call without a marker, perhaps in a code block, and for messages
# that begin like any JSON object or array.
_BARE_CALL = r'\s*(```[a-z]*\s*)?\[?\s*\{\s*"(name|type|function|arguments|parameters)"(?s:.*)'
_JSON = r"\s*[\[{](?s:.*)"


def follows_schemas(form: ToolForm) -> bool:
    """Whether a grammar can make calls in this form match the schemas of strict tools: their arguments are JSON."""
    return isinstance(form.shape, Objects) or (isinstance(form.shape, Marked) and form.shape.rules is None)


def calls_grammar(
    tools: Sequence[Tool], form: ToolForm, tags: Tags, *, several: bool, schemas: Schemas | None = None
) -> CallRules:
    """Returns the rules for calls of `tools`. `form.shape` must not be None."""
    functions = CallAlternatives.of(tools, schemas or {})
    if isinstance(form.shape, Objects):
        calls = _objects(form.shape, functions, several)
    else:
        assert isinstance(form.shape, Marked)
        if form.shape.rules is not None:
            names = CallAlternatives.of(tools, {}).name_rule
            return CallRules(names + form.shape.rules(lambda text: tags.expression(text, {_NAME: "name"}), several))
        calls = _marked(form, functions, tags, several)
    return CallRules(f"calls: {calls.expression}\n{calls.rules}", calls.grammars)


def talk_grammar(tools: Sequence[Tool], form: ToolForm, tags: Tags, *, several: bool, schemas: Schemas) -> CallRules:
    """Returns the rules for an answer that is text, calls of `tools`, or text and then calls. `follows_schemas` must
    hold for `form`. The text cannot contain what begins a call, so that every call matches its schema."""
    functions = CallAlternatives.of(tools, schemas)
    if isinstance(form.shape, Objects):
        calls = _objects(form.shape, functions, several)
        # A lexer takes the longest match. If text could begin like JSON, it would take every call for text.
        rules = f"calls: TEXT | {calls.expression}\n{_text(form.tokens, _BARE_CALL, _JSON)}"
    else:
        assert isinstance(form.shape, Marked)
        marker = form.shape.marker
        calls = _marked(form, functions, tags, several, begun=marker)
        token_id = tags.token_ids.get(marker)
        by_token = "" if token_id is None else f"TEXT <[{token_id}]> | "
        # The lazy rule ends at the first marker that the model writes as text.
        rules = (
            f"calls: TEXT | ({by_token}marked) {calls.expression}\n"
            f"marked[lazy]: MARKED\nMARKED: /(?s:.*){literal_regex(marker)}/ & ~/{_BARE_CALL}/\n"
            f"{_text({*form.tokens, marker}, _BARE_CALL)}"
        )
    return CallRules(rules + calls.rules, calls.grammars, covers_text=True)


def _text(markers: Iterable[str], *others: str) -> str:
    """Returns the rule TEXT: any text without a marker that matches none of the regular expressions `others`. One
    negation holds all of them, because llguidance's lexer accepts too little if a terminal has several."""
    marked = [f"(?s:.*){literal_regex(marker)}(?s:.*)" for marker in sorted(markers)]
    return f"TEXT: /(?s:.*)/ & ~/{'|'.join((*marked, *others))}/\n"


@dataclass(frozen=True, slots=True)
class CallAlternatives:
    """The functions that a model may call."""

    # Names of the functions that are not strict.
    names: Sequence[str]
    # Schemas of the arguments of the strict functions.
    strict: Schemas

    @classmethod
    def of(cls, tools: Sequence[Tool], schemas: Schemas) -> CallAlternatives:
        return cls([tool.name for tool in tools if tool.name not in schemas], schemas)

    @property
    def name_rule(self) -> str:
        """The rule `name`, for the names of the functions without a schema; empty if there are none."""
        return f"name: {' | '.join(map(quoted, self.names))}\n" if self.names else ""

    @property
    def alternatives(self) -> list[tuple[str, str]]:
        """Expressions for a function's name and for its arguments, one pair per strict function and one for all
        others."""
        others = [("name", "@arguments")] if self.names else []
        return others + [(quoted(name), f"@arguments_{index}") for index, name in enumerate(self.strict)]

    @property
    def grammars(self) -> tuple[dict[str, Any], ...]:
        """The grammars that `alternatives` refers to."""
        others = [schema_grammar("arguments", _ANY_OBJECT)] if self.names else []
        strict = enumerate(self.strict.values())
        return (*others, *(schema_grammar(f"arguments_{index}", schema) for index, schema in strict))


@dataclass(frozen=True, slots=True)
class _Calls:
    # Expression for one or more calls.
    expression: str
    # Rules and grammars that the expression refers to.
    rules: str
    grammars: tuple[dict[str, Any], ...]


def _marked(form: ToolForm, functions: CallAlternatives, tags: Tags, several: bool, begun: str = "") -> _Calls:
    """`begun`: beginning of the calls' text that is already written."""
    call = (_NAME, _ARGUMENTS)
    before, within, between, _, after = re.split(f"[{_NAME}{_ARGUMENTS}]", form.write([call, call]))
    one = " | ".join(f"{name} {tags.expression(within)} {arguments}" for name, arguments in functions.alternatives)
    further = f"({tags.expression(between)} one_call)*" if several else ""
    expression = f"{tags.expression(before.removeprefix(begun))} one_call {further} {tags.expression(after)}"
    return _Calls(expression, f"one_call: {one}\n{functions.name_rule}", functions.grammars)


def _objects(shape: Objects, functions: CallAlternatives, several: bool) -> _Calls:
    calls = [_call_object(shape, {"enum": functions.names}, _ANY_OBJECT)] if functions.names else []
    definitions: dict[str, Any] = {}
    for name, schema in functions.strict.items():
        definitions |= schema["$defs"]
        calls.append(_call_object(shape, {"const": name}, {"$ref": schema["$ref"]}))
    call = calls[0] if len(calls) == 1 else {"anyOf": calls}
    one = schema_grammar("call", {**call, "$defs": definitions} if definitions else call)
    if shape.separator is not None:
        return _Calls(f"@call ({quoted(shape.separator)} @call)*" if several else "@call", "", (one,))
    array = {"type": "array", "minItems": 1, "items": call, "$defs": definitions}
    if not several:
        array["maxItems"] = 1
    return _Calls("(@call | @array)", "", (one, schema_grammar("array", array)))


def _call_object(shape: Objects, name: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": name, shape.arguments: arguments},
        "required": ["name", shape.arguments],
        "additionalProperties": False,
    }
