"""Rewrites JSON Schema keywords that llguidance does not implement with keywords that it does, where possible.

First, references.py turns every reference into one to a definition of the root, so that no reference points into a
schema that is then rewritten. Each other module rewrites some keywords of one schema; its caller visits the inner
schemas later. A keyword that cannot be rewritten stays, and llguidance refuses it. The result accepts the same
instances, except for formats, which may be narrower. Section numbers are those of JSON Schema draft 2020-12, core (C)
and validation (V).
"""

from services.router.grammar.schema_rewrites.checked import checked_schema

__all__ = ["checked_schema"]
