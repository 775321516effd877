"""Collects grammar rules for forms whose arguments are not JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from services.router.chat.argument_schema import Definitions
from shared.grammar import MAX_GRAMMAR_BYTES, GrammarError


class Rules:
    """Rules with names of their own. Equal rules share one name."""

    __slots__ = ("_bodies", "_names", "_num_bytes", "_numbers", "_schemas")

    def __init__(self) -> None:
        self._numbers = itertools.count()
        # Names by what they stand for: the body of a rule, or a schema.
        self._names: dict[str, str] = {}
        self._bodies: dict[str, str] = {}
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._num_bytes = 0

    @property
    def text(self) -> str:
        return "".join(f"{name}: {body}\n" for name, body in self._bodies.items())

    @property
    def schemas(self) -> Mapping[str, Mapping[str, Any]]:
        return self._schemas

    def reserve(self) -> str:
        """Returns the name of a rule that `define` defines later, because the rule refers to itself."""
        return f"rule_{next(self._numbers)}"

    def define(self, name: str, body: str) -> None:
        self._bodies[name] = body

    def rule(self, body: str) -> str:
        return self._named(body, body, "rule", "")

    def terminal(self, body: str) -> str:
        return self._named(body, body, "TERMINAL", "")

    def lazy(self, terminal: str) -> str:
        """Returns the name of a rule for the shortest text that the body of a terminal matches."""
        return self._named(f"[lazy] {terminal}", self.terminal(terminal), "lazy", "[lazy]")

    def json(self, schema: Any, definitions: Definitions) -> str:
        """Returns an expression for JSON that matches a schema. Raises GrammarError if the schemas are too large
        together, because each has its own copy of the definitions that it needs."""
        key = f"{id(definitions)} {json.dumps(schema)}"
        if key not in self._names:
            inner = definitions.of(schema)
            whole = {**schema, "$defs": inner} if inner else schema
            self._num_bytes += len(json.dumps(whole))
            if self._num_bytes > MAX_GRAMMAR_BYTES:
                raise GrammarError(f"the grammar of the calls has more than {MAX_GRAMMAR_BYTES} bytes")
            self._names[key] = f"json_{next(self._numbers)}"
            self._schemas[self._names[key]] = whole
        return f"@{self._names[key]}"

    def _named(self, key: str, body: str, kind: str, option: str) -> str:
        if key not in self._names:
            self._names[key] = f"{kind}_{next(self._numbers)}"
            self._bodies[f"{self._names[key]}{option}"] = body
        return self._names[key]
