"""Structured output: converts JSON schemas, regular expressions and grammars to llguidance's form and checks them."""

from services.router.grammar.schema_rewrites import ASSERTIONS, format_pattern, inexact_keys, with_inner
from services.router.grammar.structure import (
    JSON_OPTIONS,
    MAX_STRUCTURE_CHOICES,
    Structure,
    StructureKind,
    literal_regex,
    quoted,
)

__all__ = [
    "ASSERTIONS",
    "JSON_OPTIONS",
    "MAX_STRUCTURE_CHOICES",
    "Structure",
    "StructureKind",
    "format_pattern",
    "inexact_keys",
    "literal_regex",
    "quoted",
    "with_inner",
]
