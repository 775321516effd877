"""Renames the prompt in the router's errors: from the typed API's field, such as `text`, to the argument of the
program, such as `prompts[3]`."""

from __future__ import annotations

import re

from quire.client.errors import QuireError

# Fields of the typed API in which `LLM` sends the program's prompt.
_PROMPT = re.compile(r"(?:text|token_ids\.ids|(?:chat\.)?messages|inputs\[0\])(?![\w.])")


def name_prompt(error: QuireError, name: str) -> None:
    """If the error is about the prompt, replaces the field's name in the typed API by `name` in the error."""
    if error.param is None or (field := _PROMPT.match(error.param)) is None:
        return
    param = name + error.param[field.end() :]
    error.message = error.message.replace(f"'{error.param}'", f"'{param}'")
    error.param, error.args = param, (error.message,)
