"""What an output must look like: JSON schemas, regular expressions and grammars, in the library's form."""

from services.router.grammar.structure import JSON_OPTIONS, Structure, StructureKind, literal_regex

__all__ = ["JSON_OPTIONS", "Structure", "StructureKind", "literal_regex"]
