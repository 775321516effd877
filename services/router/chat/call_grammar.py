"""Grammar of calls in the model's own form, for requests where the model may call a tool instead of writing a structure
or besides writing text.

The grammar restricts names to the request's tools. Arguments of a strict tool match its schema. Arguments of other
tools can be any JSON object, so the size and keywords of their schemas do not matter.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.router.chat.answer_grammar import CallRules, Tags, schema_grammar
from services.router.chat.parsers import CallsGrammar, Listed, Marked, Objects, Schemas, ToolForm, WantedCalls
from services.router.chat.tools import Tool
from services.router.grammar import literal_regex, quoted

# Placeholders for a call's name and arguments in the text that `form.write` returns.
_NAME, _ARGUMENTS = "\x00", "\x01"
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
# White space around calls. It is bounded, because a model that writes endless spaces never ends its answer.
_SPACE_RULE = r"space: /\s{0,16}/" + "\n"


def own_grammar(form: ToolForm, schemas: Schemas) -> str | None:
    """Returns the grammar of calls that match the schemas, if the arguments in this form are not JSON: such a grammar
    must be checked like a structure. Returns None otherwise, because checks of the schemas are enough. Blocks for up
    to 15 ms if the schemas are large. Raises GrammarError."""
    if form.shape is None or form.shape.own is None:
        return None
    calls = form.shape.own.grammar(WantedCalls((), schemas, several=True, expression=quoted))
    rules = f"start: {calls.expression}\n{calls.rules}{_SPACE_RULE}"
    return json.dumps({"grammars": [{"lark_grammar": rules}, *_grammars(calls.schemas)]})


def calls_grammar(
    tools: Sequence[Tool], form: ToolForm, tags: Tags, *, several: bool, schemas: Schemas | None = None
) -> CallRules:
    """Returns the rules for calls of `tools`. `form.shape.fits_structures` must hold."""
    functions = CallAlternatives.of(tools, schemas or {})
    if isinstance(form.shape, Objects):
        calls = _objects(form.shape, functions, several)
        return CallRules(f"calls: {calls.expression}\n{_SPACE_RULE}", _grammars(calls.schemas))
    assert isinstance(form.shape, Marked)
    calls = _marked(form, functions, tags, several)
    rules = f"calls: {tags.rule(form.shape.marker)} {calls.expression}\n{calls.rules}"
    return CallRules(rules, _grammars(calls.schemas))


def talk_grammar(
    tools: Sequence[Tool],
    form: ToolForm,
    tags: Tags,
    *,
    several: bool,
    schemas: Schemas,
    begins: Sequence[str] = (),
) -> CallRules:
    """Returns the rules for an answer that is text, calls of `tools`, or text and then calls. `form.shape` must not be
    None, and `alternatives.text_or_calls` must read the answer: it finds calls exactly where these rules have them.
    `begins`: the tags that begin reasoning, if an answer can begin with one. Text cannot begin with them,
    because a lexer takes the longest match: it would take the reasoning, and what follows it, for text."""
    functions = CallAlternatives.of(tools, schemas)
    reasoning = [rf"\s*{literal_regex(begin)}(?s:.*)" for begin in begins]
    if isinstance(form.shape, Objects | Listed):
        calls = _leading(form.shape, functions, tags, several)
        # For the same reason, text cannot begin like the calls.
        opening = rf"\s*[{re.escape(form.shape.opening)}](?s:.*)"
        rules = (
            f"calls: TEXT | space {calls.expression} space\n"
            f"{_text(opening, *reasoning)}{_SPACE_RULE}{functions.name_rule}"
        )
    else:
        assert isinstance(form.shape, Marked)
        marker = form.shape.marker
        calls = _marked(form, functions, tags, several)
        token_id = tags.token_ids.get(marker)
        by_token = "" if token_id is None else f"TEXT <[{token_id}]> | "
        # The lazy rule ends at the first marker that the model writes as text.
        without = f" & ~/{'|'.join(reasoning)}/" if reasoning else ""
        rules = (
            f"calls: TEXT | ({by_token}marked) {calls.expression}\n"
            f"marked[lazy]: MARKED\nMARKED: /(?s:.*){literal_regex(marker)}/{without}\n"
            f"{_text(f'(?s:.*){literal_regex(marker)}(?s:.*)', *reasoning)}"
        )
    return CallRules(rules + calls.rules, _grammars(calls.schemas), covers_text=True)


def _text(*excluded: str) -> str:
    """Returns the rule TEXT: any text that matches none of the regular expressions. One negation holds all of them,
    because a terminal with several negations refuses texts that it should accept (llguidance 1.9.1)."""
    return f"TEXT: /(?s:.*)/ & ~/{'|'.join(excluded)}/\n"


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
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The schemas that `alternatives` refers to, by name."""
        strict = {f"arguments_{index}": schema for index, schema in enumerate(self.strict.values())}
        return {"arguments": _ANY_OBJECT, **strict} if self.names else strict

    @property
    def grammars(self) -> tuple[dict[str, Any], ...]:
        return _grammars(self.schemas)


def _grammars(schemas: Schemas) -> tuple[dict[str, Any], ...]:
    return tuple(schema_grammar(name, schema) for name, schema in schemas.items())


def _marked(form: ToolForm, functions: CallAlternatives, tags: Tags, several: bool) -> CallsGrammar:
    assert isinstance(form.shape, Marked)
    if form.shape.own is not None:
        wanted = WantedCalls(functions.names, functions.strict, several, tags.expression)
        calls = form.shape.own.grammar(wanted)
        return replace(calls, rules=f"{calls.rules}{functions.name_rule}{_SPACE_RULE}")
    call = (_NAME, _ARGUMENTS)
    before, within, between, _, after = re.split(f"[{_NAME}{_ARGUMENTS}]", form.write([call, call]))
    # The end of the calls and the text before a further call can begin alike. The common text is a terminal of its own,
    # because a lexer that has read more than the shorter of two terminals never returns to it.
    common = _common_parts(between, after, form.tokens)
    middle = f"{tags.expression(within)} {form.shape.before_arguments(tags.expression)}"
    one = " | ".join(f"{name} {middle} {arguments}" for name, arguments in functions.alternatives)
    further = f"{tags.expression(between.removeprefix(common))} one_call more | " if several else ""
    rules = (
        f"one_call: {one}\n"
        f"more: {tags.expression(common)} ({further}{tags.expression(after.removeprefix(common))} space)\n"
        f"{_SPACE_RULE}{functions.name_rule}"
    )
    begin = tags.expression(before.removeprefix(form.shape.marker))
    return CallsGrammar(f"{begin} one_call more", rules, functions.schemas)


def _common_parts(one: str, other: str, tags: Sequence[str]) -> str:
    """Returns the text with which both texts begin, up to the end of a tag or of the text between two tags."""
    by_tag = "|".join(map(re.escape, tags)) or "(?!)"
    pairs = zip(re.split(f"({by_tag})", one), re.split(f"({by_tag})", other), strict=False)
    return "".join(part for part, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _leading(shape: Objects | Listed, functions: CallAlternatives, tags: Tags, several: bool) -> CallsGrammar:
    if isinstance(shape, Objects):
        return _objects(shape, functions, several)
    return shape.own.grammar(WantedCalls(functions.names, functions.strict, several, tags.expression))


def _objects(shape: Objects, functions: CallAlternatives, several: bool) -> CallsGrammar:
    calls = [_call_object(shape, {"enum": functions.names}, _ANY_OBJECT)] if functions.names else []
    definitions: dict[str, Any] = {}
    for name, schema in functions.strict.items():
        definitions |= schema["$defs"]
        calls.append(_call_object(shape, {"const": name}, {"$ref": schema["$ref"]}))
    call = calls[0] if len(calls) == 1 else {"anyOf": calls}
    schemas = {"call": {**call, "$defs": definitions} if definitions else call}
    if shape.separator is not None:
        return CallsGrammar(f"@call ({quoted(shape.separator)} @call)*" if several else "@call", schemas=schemas)
    further = '(space "," space @call)* ' if several else ""
    return CallsGrammar(f'(@call | "[" space @call {further}space "]")', schemas=schemas)


def _call_object(shape: Objects, name: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": name, shape.arguments: arguments},
        "required": ["name", shape.arguments],
        "additionalProperties": False,
    }
