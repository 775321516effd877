"""References, made ones to definitions of the root (C 8.2): rewriting moves what other references lead to.

A `$dynamicRef` depends on the resources that evaluation came through. There are only so many ways through a document,
so what it leads to is copied once for each that makes a difference, and it is then a plain reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urljoin

from services.router.grammar.schema_rewrites.document import Schema, SchemaDocument, demand
from services.router.grammar.schema_rewrites.keywords import with_inner
from shared.grammar import GrammarError

# Deeper ones are some mistake; and recursion in Python, here and in the standard library, stays shallow.
_MAX_DEPTH = 64
_MAX_SCHEMAS = 20_000
_MAX_COPIES = 1_000
_IDENTIFYING = frozenset({"$id", "$anchor", "$dynamicAnchor"})
# Resources by the dynamic anchors that they were the first to have: what a `$dynamicRef` leads to (C 8.2.3.2).
Scope = tuple[tuple[str, str], ...]


def with_plain_references(root: Any) -> SchemaDocument:
    """The document with references of the forms `#`, `#/$defs/name` and `#/definitions/name` only, and absolute ones
    out of it. Raises GrammarError."""
    return _References(root).document() if isinstance(root, dict) else SchemaDocument(root)


@dataclass(frozen=True, slots=True)
class _Place:
    schema: Any
    # URI of the resource that it is part of, without a fragment.
    base: str


class _References:
    def __init__(self, root: Schema) -> None:
        self._root = root
        draft = str(root.get("$schema"))
        self._ignores_beside_ref = any(f"draft-0{number}" in draft for number in (3, 4, 5, 6, 7))
        self._id_keyword = "id" if "draft-04" in draft or "draft-03" in draft else "$id"
        self._resources: dict[str, Any] = {}
        self._bases: dict[int, str] = {}
        # By the resource's URI and the anchor's name.
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic_anchors: dict[tuple[str, str], Any] = {}
        # Names of the dynamic anchors of a resource.
        self._dynamic_names: dict[str, list[str]] = {}
        self._definitions = {
            id(schema): f"#/{keyword}/{quote(name.replace('~', '~0').replace('/', '~1'), safe='~')}"
            for keyword in ("$defs", "definitions")
            for name, schema in root.get(keyword, {}).items()
            if isinstance(schema, dict)
        }
        self._copies: dict[tuple[int, Scope], str] = {}
        # Places to be copied, and the scopes and names of the copies.
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
        """Notes the resources and anchors in it."""
        if depth > _MAX_DEPTH:
            raise GrammarError(f"it is nested more than {_MAX_DEPTH} deep")
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
        """The scope when evaluation has come to this resource, too."""
        bound = dict(scope)
        new = {name: base for name in self._dynamic_names.get(base, ()) if name not in bound}
        return tuple(sorted((bound | new).items())) if new else scope

    def _plain(self, place: _Place, scope: Scope, depth: int) -> Any:
        """A copy, reached through this scope."""
        self._num_schemas += 1
        if self._num_schemas > _MAX_SCHEMAS:
            raise GrammarError("too much would become of it, with every reference one to a definition")
        if not isinstance(place.schema, dict):
            return place.schema
        base = self._bases.get(id(place.schema), place.base)
        scope = self._entered(scope, base)
        plain = with_inner(place.schema, lambda inner: self._plain(_Place(inner, base), scope, depth + 1))
        if depth:
            # Of no use but to references, which lead to copies at the root.
            for keyword in ("$defs", "definitions"):
                plain.pop(keyword, None)
        for keyword in _IDENTIFYING | {self._id_keyword}:
            plain.pop(keyword, None)
        references = []
        if "$ref" in plain:
            plain["$ref"] = self._reference(plain["$ref"], base, scope, dynamic=False)
            if isinstance(plain["$ref"], str) and "$dynamicRef" not in plain:
                return plain  # in its place, as members come in order
            references.append(plain.pop("$ref"))
        if "$dynamicRef" in plain:
            references.append(self._reference(plain.pop("$dynamicRef"), base, scope, dynamic=True))
        return _beside(plain, references)

    def _reference(self, reference: Any, base: str, scope: Scope, *, dynamic: bool) -> Any:
        """To a definition of the root that has what this one leads to; or that, where it is a boolean."""
        if not isinstance(reference, str):
            raise TypeError("a reference is a string")
        place = self._target(reference, base)
        if place is None:
            absolute = _joined(base, reference)
            if "://" not in absolute:
                raise GrammarError(f"the reference {reference!r} leads nowhere")
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
        """The name of the definition that is its copy, or will be."""
        scope = self._entered(scope, place.base)
        name = self._copies.get((id(place.schema), scope))
        if name is None:
            if len(self._copies) >= _MAX_COPIES:
                raise GrammarError(f"its references lead to more than {_MAX_COPIES} places that are no definitions")
            name = f"copy-{len(self._copies)}"
            while name in self._root.get("$defs", {}):
                name += "-"
            self._copies[id(place.schema), scope] = name
            self._pending.append((place, scope, name))
        return name

    def _target(self, reference: str, base: str) -> _Place | None:
        """What a reference leads to at first; None where that is not in the document."""
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
    """The schema with these, too: where they are one, as it is common."""
    if len(references) == 1 and isinstance(references[0], str):
        return schema | {"$ref": references[0]}
    demand(schema, *({"$ref": reference} if isinstance(reference, str) else reference for reference in references))
    return schema


def _joined(base: str, reference: str) -> str:
    """The reference as a URI; `urljoin` knows no fragments of URNs. Raises GrammarError."""
    if reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference) or base
    except ValueError:
        raise GrammarError(f"the reference {reference!r} is no URI") from None
