"""A router's errors, in the words of the program that asked."""

from __future__ import annotations

import re

from quire.client.errors import QuireError

# The typed API's fields for what the program calls its prompt.
_PROMPT = re.compile(r"(?:text|token_ids\.ids|(?:chat\.)?messages|inputs\[0\])(?![\w.])")


def name_prompt(error: QuireError, name: str) -> None:
    """Where the error is about the prompt: calls it `name`."""
    if error.param is None or (field := _PROMPT.match(error.param)) is None:
        return
    param = name + error.param[field.end() :]
    error.message = error.message.replace(f"'{error.param}'", f"'{param}'")
    error.param, error.args = param, (error.message,)
