"""Structured output: one type for the structures of all APIs, and its conversion to an llguidance grammar.

The worker uses the grammar to mask the tokens that would break the structure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from services.router.grammar.schema_rewrites import checked_schema, exact_keys
from shared.grammar import GrammarError, is_usable

# Maximum number of texts of which an output must be one.
MAX_STRUCTURE_CHOICES = 4096
# White space between JSON tokens. Without a limit, a confused model writes spaces until it reaches its output limit.
_WHITESPACE = r"[ \t]{0,2}|\r?\n[ \t]{0,64}"
# llguidance's options for JSON schemas.
JSON_OPTIONS: Any = {"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE}


class StructureKind(Enum):
    # A JSON schema, as JSON.
    JSON_SCHEMA = "json_schema"
    # A JSON schema that Quire made. Its definitions are separate documents, such as the parameters of tools.
    COMPOUND_SCHEMA = "compound_schema"
    # Any JSON object; the source is empty.
    JSON_OBJECT = "json_object"
    # A regular expression for the whole output.
    REGEX = "regex"
    # Strings, as a JSON array: the output is one of them.
    CHOICE = "choice"
    # Any text; the source is empty. For requests in which a grammar constrains only the calls of strict tools.
    TEXT = "text"
    # A grammar in llguidance's own form, which Quire made of the schemas of tools.
    GRAMMAR_OF_CALLS = "grammar_of_calls"
    # A context-free grammar in Lark's notation or in GBNF, as vLLM's guided_grammar takes it.
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Structure:
    kind: StructureKind
    source: str
    # Name of the request field that contained the structure. Errors report it.
    param: str = field(compare=False)

    def to_grammar(self) -> str:
        """Returns the grammar in llguidance's form, not yet compiled. Raises GrammarError."""
        from llguidance import LLMatcher

        match self.kind:
            case StructureKind.JSON_SCHEMA:
                return _exact_grammar(checked_schema(self.source))
            case StructureKind.COMPOUND_SCHEMA:
                return _exact_grammar(checked_schema(self.source, is_compound=True))
            case StructureKind.JSON_OBJECT:
                return _json_grammar({"type": "object"})
            case StructureKind.REGEX:
                return _regex_grammar(self.source)
            case StructureKind.TEXT:
                return _regex_grammar("(?s:.*)")
            case StructureKind.CHOICE:
                return _regex_grammar("|".join(map(literal_regex, json.loads(self.source))))
            case StructureKind.GRAMMAR_OF_CALLS:
                return self.source
            case StructureKind.GRAMMAR:
                return LLMatcher.grammar_from_lark(_lark(self.source))


def _exact_grammar(schema: Any) -> str:
    """Returns the grammar of a checked schema, with exact keys if llguidance can compile that. It cannot, for example,
    if the rewritten schema is too large, or has `minProperties` beside optional members."""
    exact = exact_keys(schema)
    if exact != schema:
        grammar = _json_grammar(exact)
        if is_usable(grammar):
            return grammar
    return _json_grammar(schema)


def _json_grammar(schema: Any) -> str:
    from llguidance import LLMatcher

    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_OPTIONS)
    except ValueError as error:  # a number too large for llguidance
        raise GrammarError(str(error)) from None


def _regex_grammar(regex: str) -> str:
    """Returns a grammar that allows the outputs that a regular expression matches from beginning to end. Anchors at the
    ends of the expression or of an alternative have no effect; llguidance refuses them elsewhere."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(f"(?:{regex})" if "|" in regex else regex)


def literal_regex(text: str) -> str:
    """Returns a regular expression that matches exactly this text."""
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def quoted(text: str) -> str:
    """Returns a string of llguidance's Lark dialect that matches exactly this text."""
    # JSON leaves this control character as it is. Lark does not accept it.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")


def _lark(grammar: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(grammar)
    except Exception as error:  # the library raises plain Exception
        raise GrammarError(str(error) or "it cannot be parsed") from None
