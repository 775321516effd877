"""A compound schema: its definitions are documents of their own, of whoever wrote them.

What they call `#`, and their identifiers, anchors and drafts, hold in each alone. So their references become plain ones
first, and then they can stand in one document.
"""

from __future__ import annotations

from typing import Any

from services.router.grammar.schema_rewrites.document import Schema, SchemaDocument
from services.router.grammar.schema_rewrites.keywords import with_inner
from services.router.grammar.schema_rewrites.references import with_plain_references


def one_document(root: Schema) -> SchemaDocument:
    """`root`: refers to its definitions, as `#/$defs/name`, and to nothing else; their names have no dots, and need no
    escapes in a JSON pointer. Raises GrammarError."""
    documents = {name: with_plain_references(schema) for name, schema in root["$defs"].items()}
    definitions: Schema = {}
    for name, document in documents.items():
        moved = _moved(document.root, name)
        for keyword in ("$defs", "definitions"):
            for inner_name, inner in moved.pop(keyword, {}).items():
                definitions[f"{name}.{keyword.lstrip('$')}.{inner_name}"] = inner
        definitions[name] = moved
    # Where only some drafts are such, what the others say beside references is not relied upon.
    return SchemaDocument(root | {"$defs": definitions}, any(one.ignores_beside_ref for one in documents.values()))


def _moved(schema: Any, name: str) -> Any:
    """The schema, as part of the definition of this name: its own definitions stand beside that one."""
    if not isinstance(schema, dict):
        return schema
    moved = with_inner(schema, lambda inner: _moved(inner, name))
    match str(schema.get("$ref")).split("/"):
        case ["#"]:
            moved["$ref"] = f"#/$defs/{name}"
        case ["#", keyword, inner_name]:
            moved["$ref"] = f"#/$defs/{name}.{keyword.lstrip('$')}.{inner_name}"
    return moved
