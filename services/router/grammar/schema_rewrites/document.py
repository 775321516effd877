"""A schema document that is being rewritten: its definitions, and a limit on the work of the rewriting."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from shared.grammar import GrammarError

Schema = dict[str, Any]

TYPES = ("null", "boolean", "number", "string", "array", "object")
# Maximum work on one document: the number of schemas in the result plus the number of comparisons of two schemas. This
# much work takes about 50 ms.
_MAX_WORK = 20_000


@dataclass(slots=True)
class SchemaDocument:
    """A schema document that is being rewritten. `root`: the schema that references.py returned, before the rewriting.
    Its references all point to `root` or to definitions of `root`. `ignores_beside_ref`: whether the schema's draft
    ignores keywords beside a `$ref`. `added`: definitions that the rewriting adds."""

    root: Any
    ignores_beside_ref: bool = False
    added: Schema = field(default_factory=dict)
    _work: int = 0

    def resolve(self, reference: Any) -> Any:
        """Returns the part of `root` that a reference points to; None if the target is not in the document."""
        if reference == "#":
            return self.root
        if not isinstance(reference, str) or not reference.startswith("#/") or reference.count("/") != 2:
            return None
        keyword, name = unquote(reference[2:]).split("/")
        return self.root.get(keyword, {}).get(name.replace("~1", "/").replace("~0", "~"))

    def define(self, name: str, schema: Schema) -> str:
        """Adds a definition and returns a reference to it. Appends hyphens to the name if `root` has a definition of
        this name. A second call with the same name must give the same schema, and adds nothing."""
        while name in self.root.get("$defs", {}):
            name += "-"
        self.added[name] = schema
        return f"#/$defs/{name}"

    def spend(self, work: int = 1) -> None:
        """Adds `work` to the work done on the document. Raises GrammarError if the sum exceeds _MAX_WORK."""
        self._work += work
        if self._work > _MAX_WORK:
            raise GrammarError("it is too complex: rewriting it with the supported keywords takes too many steps")


def any_of(options: Iterable[Any]) -> Any:
    """Returns a schema that accepts the values that at least one of `options` accepts. Simplifies boolean schemas."""
    open_options = [option for option in options if option is not False]
    if any(option is True or option == {} for option in open_options):
        return True
    if not open_options:
        return False
    return open_options[0] if len(open_options) == 1 else {"anyOf": open_options}


def all_of(schemas: Iterable[Any]) -> Any:
    """Returns a schema that accepts the values that all of `schemas` accept. Simplifies boolean schemas."""
    open_schemas = [schema for schema in schemas if schema is not True and schema != {}]
    if False in open_schemas:
        return False
    if not open_schemas:
        return True
    return open_schemas[0] if len(open_schemas) == 1 else {"allOf": open_schemas}


def demand(schema: Schema, *others: Any) -> None:
    """Adds `others` to the schema's `allOf`."""
    asked = [other for other in others if other is not True]
    if asked:
        schema["allOf"] = [*schema.get("allOf", ()), *asked]


def key(value: Any) -> str:
    """Returns a key that is equal for values that JSON Schema considers equal (core 4.2.2): 1 and 1.0, but not 1 and
    true."""
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_with_whole_numbers(item) for item in value]
        case dict():
            return {name: _with_whole_numbers(member) for name, member in value.items()}
    return value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
