"""The grammar of a whole answer: what may stand before a structure, and in its place, in the library's dialect of Lark.

A tag is text or a token of its own, which no text in a grammar matches; where there is such a token, either is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.router.chat.parsers import ReasoningForm
from services.router.grammar import JSON_OPTIONS, literal_regex

# A structure's own grammar, as rules name it.
_STRUCTURE = "structure"


@dataclass(frozen=True, slots=True)
class Tags:
    # The tokens that are tags, by their text.
    token_ids: Mapping[str, int]

    def rule(self, tag: str) -> str:
        """An expression for the tag, however it is written."""
        token_id = self.token_ids.get(tag)
        text = quoted(tag)
        return text if token_id is None else f"({text} | <[{token_id}]>)"

    def expression(self, text: str, parts: Mapping[str, str] | None = None) -> str:
        """An expression for a text with tags in it. `parts`: expressions that parts of the text stand for."""
        known = parts or {}
        terms, at = [], 0
        for match in re.finditer("|".join(map(re.escape, (*known, *self.token_ids))) or "(?!)", text):
            terms.append(quoted(text[at : match.start()]))
            terms.append(known.get(match[0]) or self.rule(match[0]))
            at = match.end()
        terms.append(quoted(text[at:]))
        return " ".join(term for term in terms if term != '""')

    def up_to(self, *tags: str) -> str:
        """The rule `thoughts`: any text to the first of `tags`, and the tag. What reads the answer does not care how it
        is written."""
        ids = [f"<[{self.token_ids[tag]}]>" for tag in tags if tag in self.token_ids]
        # Where a tag is spelled, the lazy rule has ended.
        of_token = f"/(?s:.*)/ ({' | '.join(ids)}) | " if ids else ""
        spelled = "|".join(map(literal_regex, tags))
        return f"thoughts: {of_token}spelled\nspelled[lazy]: /(?s:.*)({spelled})/\n"


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class CallRules:
    """Calls that may be made in the place of the structure."""

    # Of which `calls` is the whole; no rule is named as one of those here.
    rules: str
    # What they name with @.
    grammars: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerForm:
    tags: Tags
    # None: an answer does not begin with any.
    reasoning: ReasoningForm | None = None
    # Whether it begins in the middle of reasoning.
    is_inside: bool = False
    calls: CallRules | None = None

    def around(self, structure: str) -> str:
        """`structure`: its grammar in the library's form, as the result is."""
        if self.reasoning is None and self.calls is None:
            return structure
        answer = f"@{_STRUCTURE}" if self.calls is None else f"(calls | @{_STRUCTURE})"
        rules = f"start: {self._before()}{answer}\n"
        if self.reasoning is not None:
            rules += self._reasoning(self.reasoning)
        if self.calls is not None:
            rules += self.calls.rules
        further = () if self.calls is None else self.calls.grammars
        return json.dumps({"grammars": [{"lark_grammar": rules}, *named(structure, _STRUCTURE), *further]})

    def _before(self) -> str:
        if self.reasoning is None:
            return ""
        if not self.is_inside:
            return "(begin thoughts breaks)? "
        # As text it is among the thoughts.
        return "begin_token? thoughts breaks " if self.reasoning.begin in self.tags.token_ids else "thoughts breaks "

    def _reasoning(self, form: ReasoningForm) -> str:
        begin_id = self.tags.token_ids.get(form.begin)
        rules = self.tags.up_to(*form.ends) + "breaks: /\\n{0,2}/\n"
        if not self.is_inside:
            rules += f"begin: /\\n{{0,2}}/ ({' | '.join(map(self.tags.rule, form.begins))})\n"
        elif begin_id is not None:
            rules += f"begin_token: <[{begin_id}]>\n"
        return rules


def schema_grammar(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """One of the grammars that rules name with @."""
    return {"name": name, "json_schema": {**schema, "x-guidance": JSON_OPTIONS}}


def named(grammar: str, name: str) -> list[dict[str, Any]]:
    """The library's form is either a list of grammars, as JSON, or one in Lark."""
    if not grammar.lstrip().startswith("{"):
        return [{"name": name, "lark_grammar": grammar}]
    first, *rest = json.loads(grammar)["grammars"]
    return [{**first, "name": name}, *rest]
