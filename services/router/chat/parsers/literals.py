"""Python literals that models write where JSON is expected."""

from __future__ import annotations

import ast
import json
import warnings

# Models escape what needs no escape; Python, which reads their literals here, would log that.
for _kind in (SyntaxWarning, DeprecationWarning):  # from Python 3.12 on, and before
    warnings.filterwarnings("ignore", "invalid escape sequence", _kind)


def literal_json(source: str) -> str | None:
    """The literal's value as JSON; None where the source is no literal, or its value is no JSON. Time grows with the
    source: the caller bounds it."""
    try:
        text = json.dumps(ast.literal_eval(source), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return text
