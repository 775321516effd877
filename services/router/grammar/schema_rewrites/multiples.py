"""Checks `multipleOf` (JSON Schema validation 6.2.1)."""

from __future__ import annotations

from fractions import Fraction
from math import inf
from typing import Any

from services.router.grammar.schema_rewrites.document import is_number
from services.router.grammar.schema_rewrites.keywords import with_inner
from shared.grammar import GrammarError

# If two values of `multipleOf` apply to the same number, llguidance scales both to integers and multiplies these. It
# keeps only 32 bits of the product.
_MAX_PRODUCT = 2**32
_COMBINING = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "$ref", "dependentSchemas", "dependencies"})


def check_multiples(root: Any) -> None:
    """Raises GrammarError if two values of `multipleOf` might apply to the same number and llguidance would compute
    their least common multiple wrong."""
    steps: set[Fraction] = set()
    combines = False

    def find(schema: Any) -> Any:
        nonlocal combines
        if isinstance(schema, dict):
            combines = combines or bool(schema.keys() & _COMBINING)
            if is_number(schema.get("multipleOf")) and abs(schema["multipleOf"]) < inf:
                steps.add(Fraction(repr(schema["multipleOf"])))
            with_inner(schema, find)
        return schema

    find(root)
    scale = max((step.denominator for step in steps), default=1)
    largest = sorted((abs(step) * scale for step in steps), reverse=True)[:2]
    if combines and len(largest) == 2 and largest[0] * largest[1] >= _MAX_PRODUCT:
        raise GrammarError("its values of 'multipleOf' are too large to be used together")
