"""Grammar of calls in the model's own form, for requests where the model may call a tool instead of writing a
structure.

The grammar restricts names to the request's tools. Arguments can be any JSON object, as in requests without a
structure: with tool choice `auto`, Quire does not enforce the tools' schemas, so their size and keywords do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.router.chat.answer_grammar import CallRules, Tags, quoted, schema_grammar
from services.router.chat.parsers import Marked, Objects, ToolForm
from services.router.chat.tools import Tool

# Placeholders for a call's name and arguments in the text that `form.write` returns.
_NAME, _ARGUMENTS = "\x00", "\x01"


def calls_grammar(tools: Sequence[Tool], form: ToolForm, tags: Tags, *, several: bool) -> CallRules:
    """Returns the rules for calls of `tools`. `form.shape` must not be None."""
    if isinstance(form.shape, Objects):
        return _objects(form.shape, [tool.name for tool in tools], several)
    assert isinstance(form.shape, Marked)
    names = f"name: {' | '.join(quoted(tool.name) for tool in tools)}\n"

    def expression(text: str) -> str:
        return tags.expression(text, {_NAME: "name", _ARGUMENTS: "@arguments"})

    if form.shape.rules is not None:
        return CallRules(names + form.shape.rules(expression, several))
    call = (_NAME, _ARGUMENTS)
    # Text before a call's arguments, after them, and between the arguments of two calls.
    before, after = form.write([call]).split(_ARGUMENTS)
    _, between, _ = form.write([call, call]).split(_ARGUMENTS)
    further = f"({expression(between + _ARGUMENTS)})*" if several else ""
    rules = f"calls: {expression(before + _ARGUMENTS)} {further} {expression(after)}\n"
    return CallRules(names + rules, (schema_grammar("arguments", {"type": "object"}),))


def _objects(shape: Objects, names: list[str], several: bool) -> CallRules:
    call = {
        "type": "object",
        "properties": {"name": {"enum": names}, shape.arguments: {"type": "object"}},
        "required": ["name", shape.arguments],
        "additionalProperties": False,
    }
    one = schema_grammar("call", call)
    if shape.separator is None:
        most = {} if several else {"maxItems": 1}
        array = schema_grammar("array", {"type": "array", "minItems": 1, "items": call, **most})
        return CallRules("calls: @call | @array\n", (one, array))
    if not several:
        return CallRules("calls: @call\n", (one,))
    return CallRules(f"calls: @call ({quoted(shape.separator)} @call)*\n", (one,))
