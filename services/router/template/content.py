"""Finds the form of message content that a chat template expects, from its syntax tree.

Templates accept content as one string, as a list of parts (OpenAI's API), or both. A template that loops over a
message's content expects parts. If it also tests whether content is a string, it accepts both. vLLM uses the same rule.
Rendering a probe (probe.py) is more reliable; this module is for templates that refuse the probe.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from jinja2 import Environment, TemplateError, nodes

# Maximum number of passes over the syntax tree. Each pass finds the variables and macro arguments that receive content
# from those found before.
_MAX_PASSES = 4


class ContentForm(Enum):
    # A string; parts are joined.
    STRING = auto()
    # A list of parts; a string is converted to one part.
    PARTS = auto()
    # Unchanged, as the client sent it.
    EITHER = auto()


def content_form(source: str) -> ContentForm:
    """Returns the form of content that a template's source expects. If the source cannot be parsed, returns STRING; the
    error is then reported when the template is rendered."""
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(_without_generation_tags(source))
    except (TemplateError, RecursionError):
        return ContentForm.STRING
    names = _names_of_content(tree)
    if not any(_is_content(loop.iter, names) and not _is_over_calls(loop) for loop in tree.find_all(nodes.For)):
        return ContentForm.STRING
    asks = any(test.name == "string" and _is_content(test.node, names) for test in tree.find_all(nodes.Test))
    return ContentForm.EITHER if asks else ContentForm.PARTS


def _is_over_calls(loop: nodes.For) -> bool:
    """Returns whether the loop reads `function` from its items. Then the items are tool calls, not parts of content.
    Mistral's templates loop over `content` in this way: in messages of a separate role, `content` holds tool calls."""
    if not isinstance(loop.target, nodes.Name):
        return False
    item = loop.target.name
    by_name = (read.node for read in loop.find_all(nodes.Getattr) if read.attr == "function")
    by_key = (read.node for read in loop.find_all(nodes.Getitem) if _is_constant(read.arg, "function"))
    return any(isinstance(node, nodes.Name) and node.name == item for node in (*by_name, *by_key))


def _is_constant(node: nodes.Expr, value: str) -> bool:
    return isinstance(node, nodes.Const) and node.value == value


def _without_generation_tags(source: str) -> str:
    """Removes the tags of the `generation` block, an extension of transformers that plain Jinja does not support."""
    for sign in ("{%- ", "{% "):
        for end in (" -%}", " %}"):
            source = source.replace(f"{sign}generation{end}", "").replace(f"{sign}endgeneration{end}", "")
    return source


def _names_of_content(tree: nodes.Template) -> set[str]:
    """Returns the variables that hold a message's content, and the macro arguments that receive it."""
    names: set[str] = set()
    macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
    for _ in range(_MAX_PASSES):
        before = len(names)
        names.update(_assigned(tree, names))
        for call in tree.find_all(nodes.Call):
            macro = macros.get(call.node.name) if isinstance(call.node, nodes.Name) else None
            if macro is not None:
                given = zip(macro.args, call.args, strict=False)
                names.update(argument.name for argument, value in given if _is_content(value, names))
        if len(names) == before:
            break
    return names


def _assigned(tree: nodes.Template, names: set[str]) -> Iterator[str]:
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, names):
            yield assignment.target.name


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    """Returns whether `node` is a message's `content`, possibly filtered, or a variable in `names`."""
    if isinstance(node, nodes.Filter):
        return _is_content(node.node, names)
    if isinstance(node, nodes.Name):
        return node.name in names
    if isinstance(node, nodes.Getitem):
        return _is_constant(node.arg, "content")
    return isinstance(node, nodes.Getattr) and node.attr == "content"
