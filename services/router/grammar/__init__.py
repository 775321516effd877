"""Structured output: converts JSON schemas, regular expressions and grammars to llguidance's form and checks them."""

from services.router.grammar.schema_rewrites import ASSERTIONS, additional_members, format_pattern, with_inner
from services.router.grammar.structure import JSON_OPTIONS, Structure, StructureKind, literal_regex, quoted

__all__ = [
    "ASSERTIONS",
    "JSON_OPTIONS",
    "Structure",
    "StructureKind",
    "additional_members",
    "format_pattern",
    "literal_regex",
    "quoted",
    "with_inner",
]
