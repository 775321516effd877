"""Makes all references (JSON Schema core 8.2) point to definitions of the root, because rewriting moves all other
targets.

The target of a `$dynamicRef` depends on the schema resources that the evaluation entered before it came to the
`$dynamicRef`: the first one with the reference's anchor contains the target. So a `$dynamicRef` has only few possible
targets. The schema with the `$dynamicRef` is copied once for each of them, and in each copy a `$ref` to this target
replaces the `$dynamicRef`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urljoin

from services.router.grammar.schema_rewrites.document import Schema, SchemaDocument, demand
from services.router.grammar.schema_rewrites.keywords import with_inner
from shared.grammar import GrammarError

# Maximum depth of nested schemas; deeper ones are probably mistakes. The limit keeps the recursion in this file and in
# the standard library shallow.
_MAX_DEPTH = 64
_MAX_SCHEMAS = 20_000
_MAX_COPIES = 1_000
_IDENTIFYING = frozenset({"$id", "$anchor", "$dynamicAnchor"})
# Pairs of a dynamic anchor and the URI of a resource: of all resources with this anchor, the one that the evaluation
# entered first. This resource contains the target of a `$dynamicRef` to the anchor (JSON Schema core 8.2.3.2).
Scope = tuple[tuple[str, str], ...]


def with_plain_references(root: Any) -> SchemaDocument:
    """Returns the document with each reference rewritten to one of the forms `#`, `#/$defs/name` and
    `#/definitions/name`, or to an absolute URI if it points outside the document. Raises GrammarError."""
    return _References(root).document() if isinstance(root, dict) else SchemaDocument(root)


@dataclass(frozen=True, slots=True)
class _Place:
    schema: Any
    # URI, without a fragment, of the resource that contains the schema.
    base: str


class _References:
    def __init__(self, root: Schema) -> None:
        self._root = root
        draft = str(root.get("$schema"))
        self._ignores_beside_ref = any(f"draft-0{number}" in draft for number in (3, 4, 5, 6, 7))
        self._id_keyword = "id" if "draft-04" in draft or "draft-03" in draft else "$id"
        self._resources: dict[str, Any] = {}
        self._bases: dict[int, str] = {}
        # Schemas that have an anchor, by the URI of their resource and the name of the anchor.
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic_anchors: dict[tuple[str, str], Any] = {}
        # Names of the dynamic anchors of each resource, by the resource's URI.
        self._dynamic_names: dict[str, list[str]] = {}
        self._definitions = {
            id(schema): f"#/{keyword}/{quote(name.replace('~', '~0').replace('/', '~1'), safe='~')}"
            for keyword in ("$defs", "definitions")
            for name, schema in root.get(keyword, {}).items()
            if isinstance(schema, dict)
        }
        self._copies: dict[tuple[int, Scope], str] = {}
        # Schemas that are still to be copied, with the scope of each copy and the name of its definition.
        self._pending: list[tuple[_Place, Scope, str]] = []
        self._num_schemas = 0
        self._find(root, "", 0)
        self._resources.setdefault("", root)
        self._root_scope = self._entered((), self._bases[id(root)])

    def document(self) -> SchemaDocument:
        root = self._plain(_Place(self._root, self._bases[id(self._root)]), (), 0)
        copied = {}
        while self._pending:
            place, scope, name = self._pending.pop()
            copied[name] = self._plain(place, scope, 1)
        if copied:
            root["$defs"] = root.get("$defs", {}) | copied
        return SchemaDocument(root, self._ignores_beside_ref)

    def _find(self, schema: Any, base: str, depth: int) -> Any:
        """Records the resources and anchors in the schema, and returns the schema unchanged."""
        if depth > _MAX_DEPTH:
            raise GrammarError(f"it is nested more than {_MAX_DEPTH} levels deep")
        if not isinstance(schema, dict):
            return schema
        name = schema.get(self._id_keyword)
        if isinstance(name, str) and not (self._ignores_beside_ref and "$ref" in schema):
            if name.startswith("#"):  # an anchor, before draft 2019-09
                self._anchors[base, name[1:]] = schema
            else:
                base = _joined(base, name).split("#")[0]
                self._resources.setdefault(base, schema)
        self._bases[id(schema)] = base
        if isinstance(name := schema.get("$anchor"), str):
            self._anchors[base, name] = schema
        if isinstance(name := schema.get("$dynamicAnchor"), str):
            self._anchors[base, name] = self._dynamic_anchors[base, name] = schema
            self._dynamic_names.setdefault(base, []).append(name)
        with_inner(schema, lambda inner: self._find(inner, base, depth + 1))
        return schema

    def _entered(self, scope: Scope, base: str) -> Scope:
        """Returns the scope after the evaluation enters the resource `base`."""
        bound = dict(scope)
        new = {name: base for name in self._dynamic_names.get(base, ()) if name not in bound}
        return tuple(sorted((bound | new).items())) if new else scope

    def _plain(self, place: _Place, scope: Scope, depth: int) -> Any:
        """Returns a copy of the place's schema in which all references are plain `$ref`s, as in with_plain_references.
        `scope`: the dynamic scope with which the evaluation enters the place."""
        self._num_schemas += 1
        if self._num_schemas > _MAX_SCHEMAS:
            raise GrammarError(
                f"it is too complex: with the copies that its references need, it has over {_MAX_SCHEMAS} subschemas"
            )
        if not isinstance(place.schema, dict):
            return place.schema
        base = self._bases.get(id(place.schema), place.base)
        scope = self._entered(scope, base)
        plain = with_inner(place.schema, lambda inner: self._plain(_Place(inner, base), scope, depth + 1))
        if depth:
            # Inner definitions are no longer needed: all references now point to definitions of the root.
            for keyword in ("$defs", "definitions"):
                plain.pop(keyword, None)
        for keyword in _IDENTIFYING | {self._id_keyword}:
            plain.pop(keyword, None)
        references = []
        if "$ref" in plain:
            plain["$ref"] = self._reference(plain["$ref"], base, scope, dynamic=False)
            if isinstance(plain["$ref"], str) and "$dynamicRef" not in plain:
                return plain  # keeps the order of the members
            references.append(plain.pop("$ref"))
        if "$dynamicRef" in plain:
            references.append(self._reference(plain.pop("$dynamicRef"), base, scope, dynamic=True))
        return _beside(plain, references)

    def _reference(self, reference: Any, base: str, scope: Scope, *, dynamic: bool) -> Any:
        """Returns a plain reference with the same target. It points to the root, to a definition of the root, or to a
        new definition, which will be a copy of the target. If the target is a boolean, returns the target itself. If
        the target is outside the document, returns its absolute URI.
        """
        if not isinstance(reference, str):
            raise TypeError("a reference must be a string")
        place = self._target(reference, base)
        if place is None:
            absolute = _joined(base, reference)
            if "://" not in absolute:
                raise GrammarError(f"the reference {reference!r} has no target")
            return absolute
        anchor = unquote(reference.partition("#")[2])
        if dynamic and (place.base, anchor) in self._dynamic_anchors:
            base = dict(self._entered(scope, place.base))[anchor]
            place = _Place(self._dynamic_anchors[base, anchor], base)
        if isinstance(place.schema, bool):
            return place.schema
        if scope == self._root_scope:
            if place.schema is self._root:
                return "#"
            if id(place.schema) in self._definitions:
                return self._definitions[id(place.schema)]
        return f"#/$defs/{self._copy(place, scope)}"

    def _copy(self, place: _Place, scope: Scope) -> str:
        """Returns the name of the definition that holds a copy of the place's schema, and schedules the copy if it is
        new.
        """
        scope = self._entered(scope, place.base)
        name = self._copies.get((id(place.schema), scope))
        if name is None:
            if len(self._copies) >= _MAX_COPIES:
                raise GrammarError(f"its references have more than {_MAX_COPIES} targets that are not definitions")
            name = f"copy-{len(self._copies)}"
            while name in self._root.get("$defs", {}):
                name += "-"
            self._copies[id(place.schema), scope] = name
            self._pending.append((place, scope, name))
        return name

    def _target(self, reference: str, base: str) -> _Place | None:
        """Returns the place that a reference points to, regardless of the dynamic scope. None if the target is not in
        the document."""
        uri, _, fragment = _joined(base, reference).partition("#")
        schema = self._resources.get(uri)
        if schema is None:
            return None
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            schema = self._anchors.get((uri, fragment))
            return None if schema is None else _Place(schema, uri)
        for token in fragment.split("/")[1:]:
            token = token.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, list) and token.isdecimal() and int(token) < len(schema):
                schema = schema[int(token)]
            elif isinstance(schema, dict) and token in schema:
                schema = schema[token]
            else:
                return None
            uri = self._bases.get(id(schema), uri) if isinstance(schema, dict) else uri
        return _Place(schema, uri)


def _beside(schema: Schema, references: list[Any]) -> Schema:
    """Returns the schema with these references added: as its `$ref` if there is only one, otherwise to its `allOf`."""
    if len(references) == 1 and isinstance(references[0], str):
        return schema | {"$ref": references[0]}
    demand(schema, *({"$ref": reference} if isinstance(reference, str) else reference for reference in references))
    return schema


def _joined(base: str, reference: str) -> str:
    """Returns the URI that a reference in the resource `base` points to. A mere fragment is appended to `base` without
    `urljoin`, which would drop a base that is a URN. Raises GrammarError."""
    if reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference) or base
    except ValueError:
        raise GrammarError(f"the reference {reference!r} is not a URI") from None
