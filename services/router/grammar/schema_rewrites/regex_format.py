"""Pattern for the format `regex` (JSON Schema validation 7.3.8): ECMA 262 regular expressions with groups nested up to
two levels.

The pattern only accepts expressions that Python and Rust read alike: no look-around, no backreferences and no named
groups. A grammar cannot compare the two ends of a character range, such as `d-w`. The pattern therefore accepts only
ranges whose first end lies in one set of characters and whose last end lies in a later set, such as `[b-m]-[n-z]`.
"""

from __future__ import annotations

_LEVELS = 2
# Characters that match themselves: all but ^ $ \ . * + ? ( ) [ ] { } | and control characters.
_PLAIN = "[^\\x{0}-\\x{1F}\\x{7F}-\\x{9F}\\^$\\\\.*+?()\\[\\]{}|]"
_SPECIAL = "[\\^$\\\\.*+?()\\[\\]{}|/]"
_CLASS_ESCAPE = "\\\\[dDsSwWfnrtv]"
_IN_A_CLASS = f"[ !#%&'\"(-,.-/:-@0-9A-Z_`a-z{{|}}~]|{_CLASS_ESCAPE}|\\\\[\\^\\\\\\[\\]-]"
_RANGE = "a-[b-z]|A-[B-Z]|0-[1-9]|[b-m]-[n-z]|[B-M]-[N-Z]|[1-4]-[5-9]"
_CLASS = f"\\[\\^?(?:{_RANGE}|{_IN_A_CLASS})+\\]"
_CHARACTER = f"(?:{_PLAIN}|\\.|\\\\{_SPECIAL}|{_CLASS_ESCAPE}|{_CLASS})"
_ASSERTION = "\\^|\\$|\\\\[bB]"


def _quantifier() -> str:
    in_order = "|".join(f"{low},[{low}-9]" for low in range(10))
    return f"(?:(?:[*+?]|\\{{(?:[0-9]{{1,2}},?|{in_order}|[0-9],[1-9][0-9])\\}})\\??)?"


def regular_expression() -> str:
    """Returns a pattern that matches valid regular expressions: each a sequence of `^`, `$`, `\\b`, `|`, and of
    characters, classes or groups with optional quantifiers."""
    quantifier = _quantifier()
    alternatives = f"(?:{_ASSERTION}|\\||{_CHARACTER}{quantifier})*"
    for _ in range(_LEVELS):
        alternatives = f"(?:{_ASSERTION}|\\||(?:{_CHARACTER}|\\((?:\\?:)?{alternatives}\\)){quantifier})*"
    return alternatives
