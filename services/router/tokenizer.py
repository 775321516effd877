"""A model's tokenizer, made from the bundle that its worker sent: no disk, no hub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from tokenizers import Tokenizer as Library

from services.router.chat_template import ChatTemplate, from_tokenizer_config
from services.router.detokenizer import Vocabulary

# Below this, encoding takes less than handing it to a thread would cost the event loop.
_INLINE_CHARS = 2048


class Tokenizer:
    """Text to ids and back. Special tokens that a text spells out become such tokens, as in vLLM and transformers."""

    def __init__(self, tokenizer_json: bytes, tokenizer_config_json: bytes, executor: Executor) -> None:
        """`executor`: where long texts are encoded. Raises ValueError where the bundle is none."""
        try:
            self._library = Library.from_str(tokenizer_json.decode())
            config: dict[str, Any] = json.loads(tokenizer_config_json or b"{}")
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"the tokenizer bundle cannot be read: {error}") from error
        # A tokenizer.json may ask for truncation or padding of training batches; a prompt is neither.
        self._library.no_truncation()
        self._library.no_padding()
        self._executor = executor
        self.chat_template: ChatTemplate | None = from_tokenizer_config(config)
        self.vocabulary = Vocabulary(self._library)
        # No token of the vocabulary has more characters, so a text has at least len(text) / this many tokens.
        self.max_token_chars = max((len(token) for token in self._library.get_vocab()), default=1)

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids. A long text is encoded beside the event loop."""
        if len(text) <= _INLINE_CHARS:
            return self._encode(text, add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._encode, text, add_special_tokens)

    async def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        if len(token_ids) <= _INLINE_CHARS:
            return self._library.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: self._library.decode(token_ids, skip_special_tokens=skip_special_tokens)
        )

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._library.encode(text, add_special_tokens=add_special_tokens).ids
