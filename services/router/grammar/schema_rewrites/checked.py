"""Checks and rewrites the JSON schema of an output. Refuses a schema if llguidance would get one of its keywords wrong;
the error names the keyword.

llguidance itself refuses most of what it does not implement. The keywords that it treats too leniently were found by
sampling outputs for the schemas of the JSON Schema Test Suite and validating them (benchmarks/json_schema.py,
docs/structured-output.md).
"""

from __future__ import annotations

import json
from typing import Any

from services.router.grammar.schema_rewrites.arrays import contains, unique_items
from services.router.grammar.schema_rewrites.compound import one_document
from services.router.grammar.schema_rewrites.conditions import conditions
from services.router.grammar.schema_rewrites.document import SchemaDocument
from services.router.grammar.schema_rewrites.evaluation import unevaluated
from services.router.grammar.schema_rewrites.formats import formats
from services.router.grammar.schema_rewrites.keywords import with_inner
from services.router.grammar.schema_rewrites.multiples import check_multiples
from services.router.grammar.schema_rewrites.numbers import check_numbers
from services.router.grammar.schema_rewrites.objects import dependencies, pattern_properties, property_names
from services.router.grammar.schema_rewrites.patterns import patterns
from services.router.grammar.schema_rewrites.references import with_plain_references
from shared.grammar import GrammarError

# Maximum depth of the rewritten schema, which can be deeper than the original. The limit keeps Python's recursion
# shallow.
_MAX_DEPTH = 160
_COUNTS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"}
)


def checked_schema(source: str, *, is_compound: bool = False) -> dict[str, Any]:
    """Returns the schema rewritten for llguidance. `source`: the schema, as JSON. `is_compound`: whether Quire made the
    schema of several documents (schema_rewrites/compound.py). Raises GrammarError."""
    try:
        schema = json.loads(source, parse_constant=_no_constant)
    except ValueError as error:
        raise GrammarError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None
    if not isinstance(schema, dict | bool):
        raise GrammarError("it is neither an object nor a boolean")
    if schema is False:
        raise GrammarError("nothing matches it")
    if schema is True:
        return {}
    if "x-guidance" in schema:
        raise GrammarError("'x-guidance' is not supported")  # it could make llguidance ignore keywords
    try:
        document = one_document(schema) if is_compound else with_plain_references(schema)
        check_multiples(document.root)
        simplified: dict[str, Any] = _simplified(document.root, document, 0)
        if document.added:
            simplified["$defs"] = simplified.get("$defs", {}) | document.added
        check_numbers(simplified)
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None
    except (AttributeError, TypeError):
        raise GrammarError("it is not a schema: a keyword has a value of a wrong type") from None
    return simplified


def _no_constant(name: str) -> None:
    raise ValueError(f"JSON has no number {name}")


def _simplified(schema: Any, document: SchemaDocument, depth: int) -> Any:
    """Returns the schema rewritten for llguidance, and without those keywords that have no effect but that llguidance
    would refuse."""
    document.spend()
    if depth > _MAX_DEPTH:
        raise GrammarError("it is nested too deeply")
    if not isinstance(schema, dict):
        return schema
    kept = {
        keyword: int(value) if keyword in _COUNTS and isinstance(value, float) and value.is_integer() else value
        for keyword, value in schema.items()
    }
    # `unevaluated` runs first, because it needs the keywords that evaluate members and items. The other rewrites remove
    # some of these keywords.
    unevaluated(kept, document)
    dependencies(kept)
    property_names(kept, document)
    pattern_properties(kept)
    contains(kept, document)
    unique_items(kept, document)
    patterns(kept)
    formats(kept, document)
    conditions(kept, document)
    return with_inner(kept, lambda inner: _simplified(inner, document, depth + 1))
