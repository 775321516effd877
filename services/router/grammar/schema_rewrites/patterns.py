"""Patterns (V 6.3.3) that the library would get wrong.

It takes a class of characters with all control characters in it for one that a JSON string has escapes for, and then
has the quotation mark and the backslash match it, too, whether they do or not: `[^"]` matches a `"`. So classes that
leave out either leave out the null character, which no text has, as well.

And it has classes in classes, and operators between them, which ECMA 262 has not: `[`, `&&`, `--` and `~~` are
characters there. So what could be one is escaped.
"""

from __future__ import annotations

import re

from services.router.grammar.schema_rewrites.document import Schema, all_of

# Whatever is escaped, or a class; `]` is not in it but escaped, as in ECMA 262.
_TOKEN = re.compile(r"\\.|\[(?P<excludes>\^?)(?P<characters>(?:\\.|[^\]\\])*)\]", re.DOTALL)
_CHARACTER = re.compile(r"\\?.", re.DOTALL)
# A range, or what is no end of one.
_RANGE = re.compile(r"(\\?.)-(\\?.)|(\\?.)", re.DOTALL)
_OPERATORS = frozenset("[&-~")
# With any of these, it leaves out some control characters already.
_SOME_CONTROL = {"\\s", "\\n", "\\t", "\\r"}


def patterns(schema: Schema) -> None:
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = as_the_library_reads(schema["pattern"])
    if isinstance(schema.get("patternProperties"), dict):
        said: Schema = {}
        for pattern, inner in schema["patternProperties"].items():
            pattern = as_the_library_reads(pattern)
            said[pattern] = all_of([said[pattern], inner]) if pattern in said else inner
        schema["patternProperties"] = said


def as_the_library_reads(pattern: str) -> str:
    """The pattern, whose classes have the same characters for the library."""
    return _TOKEN.sub(_class, pattern)


def _class(match: re.Match[str]) -> str:
    characters = match["characters"]
    if characters is None:
        return match[0]
    if not characters:  # everything, or nothing
        return "[\\s\\S]" if match["excludes"] else "[^\\s\\S]"
    written = _RANGE.sub(_escaped, characters)
    if match["excludes"]:
        left_out = set(_CHARACTER.findall(characters))
        if left_out & {'"', "\\\\"} and not left_out & _SOME_CONTROL:
            written = f"\\x{{0}}{written}"
    return f"[{match['excludes']}{written}]"


def _escaped(match: re.Match[str]) -> str:
    return "-".join(f"\\{one}" if one in _OPERATORS else one for one in match.groups() if one is not None)
