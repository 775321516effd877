"""The format `regex` (V 7.3.8): a pattern of regular expressions as ECMA 262 has them, groups up to two levels deep.

What comes out are expressions that Python and Rust read in the same way: no look-around, no references back, no named
groups, and ranges that are in order because their ends are of such classes.
"""

from __future__ import annotations

_LEVELS = 2
# Characters that stand for themselves: all but ^ $ \ . * + ? ( ) [ ] { } | and control characters.
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
    """Alternatives of terms: `^`, `$`, `\\b`, or a character, class or group, with a quantifier or without."""
    quantifier = _quantifier()
    alternatives = f"(?:{_ASSERTION}|\\||{_CHARACTER}{quantifier})*"
    for _ in range(_LEVELS):
        alternatives = f"(?:{_ASSERTION}|\\||(?:{_CHARACTER}|\\((?:\\?:)?{alternatives}\\)){quantifier})*"
    return alternatives
