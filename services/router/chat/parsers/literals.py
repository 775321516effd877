"""Python literals that models write where JSON is expected."""

from __future__ import annotations

import ast
import json
import re
import warnings

# Models escape what needs no escape; Python, which reads their literals here, would log that.
for _kind in (SyntaxWarning, DeprecationWarning):  # from Python 3.12 on, and before
    warnings.filterwarnings("ignore", "invalid escape sequence", _kind)


# A literal takes up to 2 us a character, on the event loop. One string takes less than a hundredth of that.
_MAX_CHARS = 4_096
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*+\"|'(?:[^'\\]|\\.)*+'", re.DOTALL)


def literal_json(source: str) -> str | None:
    """The literal's value as JSON. None where the source is no literal, its value is no JSON, or it has more than 4,096
    characters and is no single string."""
    if len(source) > _MAX_CHARS and not _STRING.fullmatch(source):
        return None
    try:
        text = json.dumps(ast.literal_eval(source), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return text
