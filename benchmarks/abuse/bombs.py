"""Requests with chat templates and grammars that would run forever or take all memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from benchmarks.abuse.attack import Answer, Attack, Row, Target, first_wrong, posting
from benchmarks.abuse.grammar_bombs import GRAMMARS, REGEXES, SCHEMAS
from benchmarks.abuse.large import HELLO
from benchmarks.abuse.template_bombs import TEMPLATES


def template(text: str) -> Attack:
    return posting("/v1/chat/completions", messages=HELLO, max_tokens=5, chat_template=text)


def grammar(value: Any, kind: str) -> Attack:
    return posting("/v1/chat/completions", messages=HELLO, max_tokens=5, structured_outputs={kind: value})


def full_lexers(choices: int = 8, tokens: int = 1990) -> Attack:
    """Texts of limited length, all of one schema: together they have more states than a lexer may."""
    structure = {"json": {"type": "string", "minLength": 2 * tokens, "maxLength": 2 * tokens}}
    return posting(
        "/v1/chat/completions", messages=HELLO, n=choices, max_tokens=tokens, structured_outputs=structure, seed=1
    )


def _rows(kind: str, bombs: Mapping[str, Any], make: Callable[[Any], Attack], statuses: Collection[int]) -> list[Row]:
    """Each bomb alone, and then eight different ones at once. The router would check eight copies of a grammar once."""
    rows = [Row(f"{kind} bomb: {name}", partial(make, bomb), statuses, copies=(1,)) for name, bomb in bombs.items()]
    names = list(bombs)
    for first in range(0, len(names), 8):
        group = {name: bombs[name] for name in names[first : first + 8]}
        row_name = f"{kind} bombs {first + 1} to {first + len(group)} at once"
        rows.append(Row(row_name, partial(_at_once, group, make, statuses), statuses, copies=(1,)))
    return rows


def _at_once(bombs: Mapping[str, Any], make: Callable[[Any], Attack], statuses: Collection[int]) -> Attack:
    attacks = {name: make(_changed(bomb)) for name, bomb in bombs.items()}

    async def attack(target: Target) -> Answer:
        answers = await asyncio.gather(*(send(target) for send in attacks.values()))
        return first_wrong(dict(zip(attacks, answers, strict=True)), statuses)

    return attack


def _changed(bomb: Any) -> Any:
    """The same work, but not the same text: the router keeps what it found out about a grammar."""
    return {**bomb, "description": "again"} if isinstance(bomb, dict) else f"{bomb}\n"


ROWS = (
    Row("8 long texts of one schema", full_lexers, (200,), copies=(1,)),
    *_rows("template", TEMPLATES, template, (400,)),
    *_rows("regex", REGEXES, partial(grammar, kind="regex"), (200, 400)),
    *_rows("grammar", GRAMMARS, partial(grammar, kind="grammar"), (200, 400)),
    *_rows("schema", SCHEMAS, partial(grammar, kind="json"), (200, 400)),
)
