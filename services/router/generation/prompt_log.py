"""Logs the beginning of each prompt, if the operator asks for it (--log-prompts)."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from services.router.model import ServedModel
from services.router.text import INLINE_CHARS

logger = logging.getLogger(__name__)

# A character has at most four bytes, and almost every token at least one byte.
_TOKENS_PER_CHAR = 4


class PromptLog:
    def __init__(self, num_chars: int) -> None:
        """`num_chars`: maximum number of characters of a prompt to log; 0 logs none."""
        self._num_chars = num_chars
        # No more than are decoded at once, on the event loop.
        self._num_tokens = min(_TOKENS_PER_CHAR * num_chars, INLINE_CHARS)

    async def write(self, request_id: str, model: ServedModel, prompt: Sequence[int]) -> None:
        """`prompt`: token ids, as the model gets them."""
        if not self._num_chars or not logger.isEnabledFor(logging.INFO):
            return
        (text,) = await model.tokenizer.decode([prompt[: self._num_tokens]])
        extra = {"request_id": request_id}
        logger.info("a prompt of %d tokens for %s: %s", len(prompt), model.info.name, self._quoted(text), extra=extra)

    def _quoted(self, text: str) -> str:
        """Returns the beginning in quotes, on one line, without anything that a terminal would obey."""
        quoted = json.dumps(text[: self._num_chars], ensure_ascii=False)
        return "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode()
            for character in quoted
        )
