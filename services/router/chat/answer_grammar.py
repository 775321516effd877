"""Grammar of a whole answer, in llguidance's Lark dialect: optional reasoning, then a structure or tool calls.

The model can write a tag (such as <think>) as text or, if the vocabulary has one for it, as a special token. Text in a
grammar never matches a special token, so a tag that has a token needs two alternatives in the grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.router.chat.parsers import ReasoningForm
from services.router.grammar import JSON_OPTIONS, literal_regex, quoted

# Name by which the rules refer to the structure's grammar.
_STRUCTURE = "structure"


@dataclass(frozen=True, slots=True)
class Tags:
    # Token ids of the tags that are single tokens, by the tag's text.
    token_ids: Mapping[str, int]

    def rule(self, tag: str) -> str:
        """Returns an expression that matches the tag as text, and also as a token if the tag has one."""
        token_id = self.token_ids.get(tag)
        text = quoted(tag)
        return text if token_id is None else f"({text} | <[{token_id}]>)"

    def expression(self, text: str, parts: Mapping[str, str] | None = None) -> str:
        """Returns an expression that matches `text`. Tags in the text also match as tokens. `parts` maps parts of the
        text to expressions that replace them."""
        known = parts or {}
        terms, at = [], 0
        for match in re.finditer("|".join(map(re.escape, (*known, *self.token_ids))) or "(?!)", text):
            terms.append(quoted(text[at : match.start()]))
            terms.append(known.get(match[0]) or self.rule(match[0]))
            at = match.end()
        terms.append(quoted(text[at:]))
        return " ".join(term for term in terms if term != '""')

    def up_to(self, *tags: str, without: Sequence[str] = ()) -> str:
        """Returns the rule `thoughts`: any text up to and including the first of `tags`, as text or as a token.
        `without`: tags that the text before it cannot contain."""
        ids = [f"<[{self.token_ids[tag]}]>" for tag in tags if tag in self.token_ids]
        excluded = f" & ~/(?s:.*)({'|'.join(map(literal_regex, without))})(?s:.*)/" if without else ""
        # The lazy rule `spelled` ends at the first tag that the model writes as text.
        of_token = f"THOUGHTS ({' | '.join(ids)}) | " if ids else ""
        spelled = "|".join(map(literal_regex, tags))
        return (
            f"thoughts: {of_token}spelled\nspelled[lazy]: SPELLED\n"
            f"THOUGHTS: /(?s:.*)/{excluded}\nSPELLED: /(?s:.*)({spelled})/{excluded}\n"
        )


@dataclass(frozen=True, slots=True)
class CallRules:
    """Grammar rules for the calls that the model may make in place of the structure."""

    # The entry rule is `calls`. The other rules must not have names of rules that this module writes.
    rules: str
    # The grammars that the rules refer to with @.
    grammars: tuple[dict[str, Any], ...] = ()
    # Whether the rules also describe text without calls. Then there is no structure besides them.
    covers_text: bool = False


@dataclass(frozen=True, slots=True)
class AnswerForm:
    tags: Tags
    # None: answers have no reasoning.
    reasoning: ReasoningForm | None = None
    # Whether the answer begins inside the reasoning, without its begin tag.
    is_inside: bool = False
    calls: CallRules | None = None

    def around(self, structure: str) -> str:
        """Returns the grammar of the whole answer. `structure`: the grammar of the structure, in a form that `named`
        accepts; the result also has such a form."""
        if self.reasoning is None and self.calls is None:
            return structure
        if self.calls is None:
            answer = f"@{_STRUCTURE}"
        else:
            answer = "calls" if self.calls.covers_text else f"(calls | @{_STRUCTURE})"
        rules = f"start: {self._before()}{answer}\n"
        if self.reasoning is not None:
            rules += self._reasoning(self.reasoning)
        if self.calls is not None:
            rules += self.calls.rules
        grammars = [] if self.calls is not None and self.calls.covers_text else named(structure, _STRUCTURE)
        further = () if self.calls is None else self.calls.grammars
        return json.dumps({"grammars": [{"lark_grammar": rules}, *grammars, *further]})

    def _before(self) -> str:
        if self.reasoning is None:
            return ""
        if not self.is_inside:
            return "(begin thoughts breaks)? "
        # The model may repeat the begin tag. If it writes the tag as text, `thoughts` matches the tag. If it writes the
        # tag's token, `thoughts` does not match the token, so the rule `begin_token` does.
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
    """Returns a grammar for `schema` that rules refer to as @`name`."""
    return {"name": name, "json_schema": {**schema, "x-guidance": JSON_OPTIONS}}


def named(grammar: str, name: str) -> list[dict[str, Any]]:
    """Returns `grammar` as a list of llguidance grammars, and names the first one `name`. `grammar` is either a JSON
    object with a list of grammars, or one grammar in Lark."""
    if not grammar.lstrip().startswith("{"):
        return [{"name": name, "lark_grammar": grammar}]
    first, *rest = json.loads(grammar)["grammars"]
    return [{**first, "name": name}, *rest]
