"""Refuses integers in `const`, `enum` and bounds (JSON Schema validation 6.1, 6.2) that a double cannot represent
exactly, because llguidance would change them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.router.grammar.schema_rewrites.keywords import with_inner
from shared.grammar import GrammarError

_KEYWORDS = ("const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def check_numbers(root: Any) -> None:
    """Raises GrammarError if llguidance would change one of the schema's integers."""

    def find(schema: Any) -> Any:
        if isinstance(schema, dict):
            for keyword in _KEYWORDS:
                for number in _integers(schema.get(keyword)):
                    if not _is_kept(number):
                        raise GrammarError(f"{str(number)[:40]} in '{keyword}' has more than 53 bits")
            with_inner(schema, find)
        return schema

    find(root)


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _integers(inner)


def _is_kept(number: int) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False
