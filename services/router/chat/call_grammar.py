"""Calls in a model's own form as a grammar, where they may be made in the place of a structure.

The names are those of the tools; arguments are any JSON object, as where there is no structure: what is free to call is
not held to schemas, and none is too large or beyond the library.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.router.chat.answer_grammar import CallRules, Tags, quoted, schema_grammar
from services.router.chat.parsers import Marked, Objects, ToolForm
from services.router.chat.tools import Tool

# Stand for a name and for arguments in what a form writes.
_NAME, _ARGUMENTS = "\x00", "\x01"


def calls_grammar(tools: Sequence[Tool], form: ToolForm, tags: Tags, *, several: bool) -> CallRules:
    """`form`: with a shape."""
    if isinstance(form.shape, Objects):
        return _objects(form.shape, [tool.name for tool in tools], several)
    assert isinstance(form.shape, Marked)
    names = f"name: {' | '.join(quoted(tool.name) for tool in tools)}\n"

    def expression(text: str) -> str:
        return tags.expression(text, {_NAME: "name", _ARGUMENTS: "@arguments"})

    if form.shape.rules is not None:
        return CallRules(names + form.shape.rules(expression, several))
    call = (_NAME, _ARGUMENTS)
    # What stands before one call's arguments and after them, and what stands between two calls'.
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
