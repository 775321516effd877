"""Makes one schema document of a compound schema, each of whose definitions is a separate document.

A document has its own `#`, identifiers, anchors and draft. So before the documents are merged, references.py makes all
references of each document point to the document's root or to definitions of the root.
"""

from __future__ import annotations

from typing import Any

from services.router.grammar.schema_rewrites.document import Schema, SchemaDocument
from services.router.grammar.schema_rewrites.keywords import with_inner
from services.router.grammar.schema_rewrites.references import with_plain_references


def one_document(root: Schema) -> SchemaDocument:
    """Returns one document with all definitions of the compound schema `root`. The references outside the definitions
    must have the form `#/$defs/name`. The names must have no dots and need no escapes in a JSON pointer. Raises
    GrammarError."""
    documents = {name: with_plain_references(schema) for name, schema in root["$defs"].items()}
    definitions: Schema = {}
    for name, document in documents.items():
        moved = _moved(document.root, name)
        for keyword in ("$defs", "definitions"):
            for inner_name, inner in moved.pop(keyword, {}).items():
                definitions[f"{name}.{keyword.lstrip('$')}.{inner_name}"] = inner
        definitions[name] = moved
    # In some drafts, keywords beside `$ref` are ignored. If any of the documents has such a draft, rewrites rely on
    # these keywords in none of the documents.
    return SchemaDocument(root | {"$defs": definitions}, any(one.ignores_beside_ref for one in documents.values()))


def _moved(schema: Any, name: str) -> Any:
    """Returns a copy of a schema from the document `name`, with its references changed for the merged document: `#`
    becomes `#/$defs/name`, and `#/$defs/inner` becomes `#/$defs/name.defs.inner`.
    """
    if not isinstance(schema, dict):
        return schema
    moved = with_inner(schema, lambda inner: _moved(inner, name))
    match str(schema.get("$ref")).split("/"):
        case ["#"]:
            moved["$ref"] = f"#/$defs/{name}"
        case ["#", keyword, inner_name]:
            moved["$ref"] = f"#/$defs/{name}.{keyword.lstrip('$')}.{inner_name}"
    return moved
