"""Collects grammar rules for forms whose arguments are not JSON."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

from services.router.chat.argument_schema import Definitions, NoValueError, ObjectSchema
from services.router.grammar import literal_regex
from shared.grammar import MAX_GRAMMAR_BYTES, GrammarError

# Terminal for the names that need no quotes. In a grammar, \w has all that Unicode counts as parts of words: more than
# Python's \w, such as accents that are characters of their own.
WORD_TERMINAL = r"/\w+/"


class Rules:
    """Rules with names of their own. Equal rules share one name."""

    __slots__ = ("_bodies", "_json_names", "_names", "_num_bytes", "_numbers", "_schemas")

    def __init__(self) -> None:
        self._numbers = itertools.count()
        # Names by what they stand for.
        self._names: dict[str, str] = {}
        self._json_names: dict[tuple[Definitions, str], str] = {}
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
        key = (definitions, json.dumps(schema))
        if key not in self._json_names:
            inner = definitions.of(schema)
            whole = {**schema, "$defs": inner} if inner else schema
            self._num_bytes += len(json.dumps(whole))
            if self._num_bytes > MAX_GRAMMAR_BYTES:
                raise GrammarError(f"the grammar of the calls has more than {MAX_GRAMMAR_BYTES} bytes")
            self._json_names[key] = f"json_{next(self._numbers)}"
            self._schemas[self._json_names[key]] = whole
        return f"@{self._json_names[key]}"

    def members(
        self,
        schema: ObjectSchema,
        named: Callable[[str], str],
        between: str,
        comma: str,
        end: str,
        value: Callable[[Any, Definitions], str],
    ) -> str:
        """Returns an expression for an object's members, in the order of the schema, and its end.

        `named`: returns an expression for the name of a member of the schema and the text between it and the value.
        `between`: expression for that text alone; it follows the names of additional members, which match
        WORD_TERMINAL. `comma`: expression for the text between two members. `end`: expression for the
        end of the object. `value`: returns an expression for the values that match a schema. Raises what `named` and
        `value` raise; NoValueError only if the member is required, because others can be left out."""
        # `after`: what can follow an earlier member; `first`: what can follow the beginning of the object.
        after = first = end
        if schema.additional is not False:
            excluded = "|".join(map(literal_regex, schema.properties))
            key = self.terminal(f"{WORD_TERMINAL} & ~/{excluded}/" if excluded else WORD_TERMINAL)
            with contextlib.suppress(NoValueError):
                other = self.rule(f"{key} {between} {value(schema.additional, schema.definitions)}")
                after = self.rule(f"({comma} {other})* {end}")
                first = self.rule(f"({other} ({comma} {other})*)? {end}")
        for name, member in reversed(list(schema.properties.items())):
            is_required = name in schema.required
            try:
                values = value(member, schema.definitions)
            except NoValueError:
                if is_required:
                    raise
                continue
            pair = f"{named(name)} {values} {after}"
            first = self.rule(pair if is_required else f"{pair} | {first}")
            after = self.rule(f"{comma} {pair}" if is_required else f"{comma} {pair} | {after}")
        return first

    def _named(self, key: str, body: str, kind: str, option: str) -> str:
        if key not in self._names:
            self._names[key] = f"{kind}_{next(self._numbers)}"
            self._bodies[f"{self._names[key]}{option}"] = body
        return self._names[key]
