"""Rewrites patterns (JSON Schema validation 6.3.3) that llguidance would misread.

If a character class contains all control characters, as most negated classes do, llguidance lets it match all
characters that JSON escapes. These include the quotation mark and the backslash, so `[^"]` would match a `"`. So a
class that excludes the quotation mark or the backslash is made to exclude the null character, too: then it no longer
contains all control characters. Real texts contain no null characters.

llguidance also supports nested classes and operators on classes, unlike ECMA 262, where `[`, `&&`, `--` and `~~` in a
class are plain characters. So these characters are escaped in classes.
"""

from __future__ import annotations

import re

from services.router.grammar.schema_rewrites.document import Schema, all_of

# Matches an escape or a class. A `]` in a class must be escaped, as in ECMA 262.
_TOKEN = re.compile(r"\\.|\[(?P<excludes>\^?)(?P<characters>(?:\\.|[^\]\\])*)\]", re.DOTALL)
_CHARACTER = re.compile(r"\\?.", re.DOTALL)
# Matches a range, or a character that is not part of a range.
_RANGE = re.compile(r"(\\?.)-(\\?.)|(\\?.)", re.DOTALL)
_OPERATORS = frozenset("[&-~")
# Escapes that match control characters. A negated class with one of these escapes does not contain all control
# characters, so it need not exclude the null character, too.
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
    """Returns the pattern with each class rewritten so that llguidance matches the same characters as ECMA 262."""
    return _TOKEN.sub(_class, pattern)


def _class(match: re.Match[str]) -> str:
    characters = match["characters"]
    if characters is None:
        return match[0]
    if not characters:  # [^] matches everything, [] nothing
        return "[\\s\\S]" if match["excludes"] else "[^\\s\\S]"
    written = _RANGE.sub(_escaped, characters)
    if match["excludes"]:
        left_out = set(_CHARACTER.findall(characters))
        if left_out & {'"', "\\\\"} and not left_out & _SOME_CONTROL:
            written = f"\\x{{0}}{written}"
    return f"[{match['excludes']}{written}]"


def _escaped(match: re.Match[str]) -> str:
    return "-".join(f"\\{one}" if one in _OPERATORS else one for one in match.groups() if one is not None)
