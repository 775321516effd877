"""Logs the beginning of each prompt, if the operator asks for it (--log-prompts)."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from services.router.model import ServedModel

logger = logging.getLogger(__name__)


class PromptLog:
    def __init__(self, num_chars: int) -> None:
        """`num_chars`: maximum number of characters of a prompt to log; 0 logs none."""
        self._num_chars = num_chars

    async def write(self, request_id: str, model: ServedModel, prompt: Sequence[int]) -> None:
        """`prompt`: token ids, as the model gets them."""
        if not self._num_chars:
            return
        # A token has at least one character, except those that are only a part of one.
        (text,) = await model.tokenizer.decode([prompt[: self._num_chars]])
        beginning = json.dumps(text[: self._num_chars], ensure_ascii=False)
        logger.info(
            "a prompt of %d tokens for %s: %s",
            len(prompt),
            model.info.name,
            beginning,
            extra={"request_id": request_id},
        )
