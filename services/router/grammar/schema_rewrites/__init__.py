"""Keywords of JSON Schema that the library has not built, said with keywords that it has, where that is possible.

First every reference becomes one to a definition of the root (references.py), so that nothing leads into what is then
rewritten. Each of the other modules says some keywords of one schema otherwise and leaves the schemas in it to its
caller, who comes to them later; what cannot be said otherwise stays, and the library refuses it. What comes out accepts
the same instances, but for formats, which may be narrower. Sections are those of JSON Schema draft 2020-12, core (C)
and validation (V).
"""

from services.router.grammar.schema_rewrites.checked import checked_schema

__all__ = ["checked_schema"]
