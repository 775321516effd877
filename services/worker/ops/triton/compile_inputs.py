"""All that decides what Triton's compiler makes of a variant, as a short digest.

A variant with the digest of an earlier run need not be compiled again to know its resources. Comments, docstrings and
the place of a kernel in its module count for nothing, because the compiler does not see them.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

import triton
import triton.language as tl

_DIGITS = 10  # hexadecimal: of a thousand variants, two have the same digest with a chance of one in a million


def digest(kernel: Any, *arguments: object) -> str:
    """Returns hexadecimal digits that change when the source of a kernel (triton.JITFunction) changes, or of a function
    or constant that it uses, or an argument, or Triton's version, which also determines that of ptxas."""
    words = [triton.__version__, *_sources(kernel), *map(_text, arguments)]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:_DIGITS]


def _text(argument: object) -> str:
    if isinstance(argument, Mapping):
        return ", ".join(f"{name}: {_text(argument[name])}" for name in sorted(argument))
    return "".join(_sources(argument)) if isinstance(argument, triton.JITFunction) else repr(argument)


@cache
def _sources(function: Any) -> tuple[str, ...]:
    sources: dict[str, str] = {}
    _add(function, sources)
    return tuple(sources.values())


def _add(function: Any, sources: dict[str, str]) -> None:
    """Adds the source of a triton.JITFunction, and those of all functions and constants that it uses."""
    key = f"{function.__module__}.{function.__name__}"
    if key in sources:
        return
    (definition,) = ast.parse(function.src).body
    assert isinstance(definition, ast.FunctionDef)
    if ast.get_docstring(definition) is not None:
        del definition.body[0]
    sources[key] = ast.unparse(definition)
    names = function.fn.__globals__ | dict(inspect.getclosurevars(function.fn).nonlocals)
    for node in ast.walk(definition):
        value = _value(node, names)
        if isinstance(value, triton.JITFunction):
            _add(value, sources)
        elif isinstance(value, tl.constexpr):
            sources[f"{key}: {ast.unparse(node)}"] = repr(value.value)


def _value(node: ast.AST, names: Mapping[str, object]) -> object:
    """Returns what a name, or an attribute of a module, stands for; None if it stands for something else."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, names)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
    return None
