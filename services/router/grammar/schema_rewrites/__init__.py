"""Replaces JSON Schema keywords that llguidance does not implement by keywords that it implements, where possible.

First, references.py makes every reference point to a definition of the root, so that no reference points into a schema
that is rewritten later. Then checked.py visits each schema, outer schemas before inner ones, and calls the other
modules; each of them rewrites some keywords of the visited schema. A keyword that cannot be rewritten stays, and
llguidance refuses it. The result accepts the same instances, except for formats, which can be narrower. Section numbers
such as "JSON Schema core 11.3" are those of draft 2020-12.
"""

from services.router.grammar.schema_rewrites.checked import checked_schema
from services.router.grammar.schema_rewrites.formats import format_pattern
from services.router.grammar.schema_rewrites.keywords import ASSERTIONS, with_inner
from services.router.grammar.schema_rewrites.member_keys import exact_keys, inexact_keys

__all__ = ["ASSERTIONS", "checked_schema", "exact_keys", "format_pattern", "inexact_keys", "with_inner"]
