"""A schema's document while it is rewritten: its definitions, and how much may become of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from shared.grammar import GrammarError

Schema = dict[str, Any]

TYPES = ("null", "boolean", "number", "string", "array", "object")
# Schemas that may come out of one document, and comparisons that may be made for them: some 50 ms.
_MAX_WORK = 20_000


@dataclass(slots=True)
class SchemaDocument:
    """`root`: with references to definitions of the root only, not rewritten. `ignores_beside_ref`: its draft has
    nothing apply beside a `$ref`. `added`: definitions of what comes out, beside those that were given."""

    root: Any
    ignores_beside_ref: bool = False
    added: Schema = field(default_factory=dict)
    _work: int = 0

    def resolve(self, reference: Any) -> Any:
        """The schema that a reference leads to, as it was given; None where that is not in the document."""
        if reference == "#":
            return self.root
        if not isinstance(reference, str) or not reference.startswith("#/") or reference.count("/") != 2:
            return None
        keyword, name = unquote(reference[2:]).split("/")
        return self.root.get(keyword, {}).get(name.replace("~1", "/").replace("~0", "~"))

    def define(self, name: str, schema: Schema) -> str:
        """A reference to a definition that is added once, under this name or one like it."""
        while name in self.root.get("$defs", {}):
            name += "-"
        self.added[name] = schema
        return f"#/$defs/{name}"

    def spend(self, work: int = 1) -> None:
        """Raises GrammarError where too much becomes of the document."""
        self._work += work
        if self._work > _MAX_WORK:
            raise GrammarError("too much would become of it, said with the keywords that are supported")


def any_of(options: Iterable[Any]) -> Any:
    """One of these schemas applies; booleans are settled."""
    open_options = [option for option in options if option is not False]
    if any(option is True or option == {} for option in open_options):
        return True
    if not open_options:
        return False
    return open_options[0] if len(open_options) == 1 else {"anyOf": open_options}


def all_of(schemas: Iterable[Any]) -> Any:
    """All of these schemas apply; booleans are settled."""
    open_schemas = [schema for schema in schemas if schema is not True and schema != {}]
    if False in open_schemas:
        return False
    if not open_schemas:
        return True
    return open_schemas[0] if len(open_schemas) == 1 else {"allOf": open_schemas}


def demand(schema: Schema, *others: Any) -> None:
    """Has these apply beside what the schema has."""
    asked = [other for other in others if other is not True]
    if asked:
        schema["allOf"] = [*schema.get("allOf", ()), *asked]


def key(value: Any) -> str:
    """Equal for values that JSON Schema takes for equal (C 4.2.2): 1 and 1.0 are, 1 and true are not."""
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
