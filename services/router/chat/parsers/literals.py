"""Python literals that models write where JSON is expected."""

from __future__ import annotations

import ast
import json
import re
import warnings

# Models escape characters that need no escape; Python would log a warning for each when it parses the literal.
for _kind in (SyntaxWarning, DeprecationWarning):  # Python 3.12 and later; earlier versions
    warnings.filterwarnings("ignore", "invalid escape sequence", _kind)


# Longest literal that is parsed, because parsing takes up to 2 us per character and blocks the event loop. The limit
# does not apply to single strings, which take less than a hundredth of that time.
_MAX_CHARS = 4_096
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*+\"|'(?:[^'\\]|\\.)*+'", re.DOTALL)


def literal_json(source: str) -> str | None:
    """Returns the literal's value as JSON. None if `source` is not a literal, if JSON cannot express its value, or if
    `source` has more than 4,096 characters and is not a single string."""
    if len(source) > _MAX_CHARS and not _STRING.fullmatch(source):
        return None
    try:
        text = json.dumps(ast.literal_eval(source), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return text
