"""What an output must look like, as its request says it: one form for all APIs, and the grammar that it is for the
library that makes masks of it where the tokens are drawn.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from services.router.grammar.schema_rewrites import checked_schema
from shared.grammar import GrammarError

# Between the tokens of JSON. Without a bound, a model that has lost its way writes spaces until its limit comes.
_WHITESPACE = r"[ \t]{0,2}|\r?\n[ \t]{0,64}"
# As the library takes them with a schema.
JSON_OPTIONS: Any = {"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE}


class StructureKind(Enum):
    # A JSON schema, as JSON.
    JSON_SCHEMA = "json_schema"
    # The same, of ours, whose definitions are documents of their own, as tools' parameters are.
    COMPOUND_SCHEMA = "compound_schema"
    # Any JSON object; the source is empty.
    JSON_OBJECT = "json_object"
    # A regular expression for the whole output.
    REGEX = "regex"
    # Strings, as a JSON array: the output is one of them.
    CHOICE = "choice"
    # A context-free grammar in Lark's notation or in GBNF, as vLLM's guided_grammar takes it.
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Structure:
    kind: StructureKind
    source: str
    # The request's field that it came in, for errors.
    param: str = field(compare=False)

    def to_grammar(self) -> str:
        """In the library's form, not compiled yet. Raises GrammarError."""
        from llguidance import LLMatcher

        match self.kind:
            case StructureKind.JSON_SCHEMA:
                return _json_grammar(checked_schema(self.source))
            case StructureKind.COMPOUND_SCHEMA:
                return _json_grammar(checked_schema(self.source, is_compound=True))
            case StructureKind.JSON_OBJECT:
                return _json_grammar({"type": "object"})
            case StructureKind.REGEX:
                return _regex_grammar(self.source)
            case StructureKind.CHOICE:
                return _regex_grammar("|".join(map(literal_regex, json.loads(self.source))))
            case StructureKind.GRAMMAR:
                return LLMatcher.grammar_from_lark(_lark(self.source))


def _json_grammar(schema: Any) -> str:
    from llguidance import LLMatcher

    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_OPTIONS)
    except ValueError as error:  # a number that it has no room for
        raise GrammarError(str(error)) from None


def _regex_grammar(regex: str) -> str:
    """The library takes anchors nowhere but at the ends, where they say what is so anyway."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(f"(?:{regex})" if "|" in regex else regex)


def literal_regex(text: str) -> str:
    """A regular expression for these very characters."""
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def _lark(grammar: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(grammar)
    except Exception as error:  # the library raises plain Exception
        raise GrammarError(str(error) or "it cannot be read") from None
