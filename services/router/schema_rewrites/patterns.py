"""Patterns (V 6.3.3) that the library would get wrong.

It takes a class of characters with all control characters in it for one that a JSON string has escapes for, and then
has the quotation mark and the backslash match it, too, whether they do or not: `[^"]` matches a `"`. So classes that
leave out either leave out the null character, which no text has, as well.
"""

from __future__ import annotations

import re

from services.router.schema_rewrites.document import Schema

# Whatever is escaped, or a class that excludes; `]` is not in it but escaped, as in ECMA 262.
_TOKEN = re.compile(r"\\.|\[\^(?P<excluded>(?:\\.|[^\]\\])+)\]", re.DOTALL)
_CHARACTER = re.compile(r"\\?.", re.DOTALL)
# With any of these, it leaves out some control characters already.
_SOME_CONTROL = {"\\s", "\\n", "\\t", "\\r"}


def patterns(schema: Schema) -> None:
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = without_null(schema["pattern"])


def without_null(pattern: str) -> str:
    """The pattern, whose classes that leave out a quotation mark or a backslash leave out the null character, too."""
    return _TOKEN.sub(_without_null, pattern)


def _without_null(match: re.Match[str]) -> str:
    excluded = match["excluded"] or ""
    characters = set(_CHARACTER.findall(excluded))
    if not characters & {'"', "\\\\"} or characters & _SOME_CONTROL:
        return match[0]
    return f"[^\\x{{0}}{excluded}]"
