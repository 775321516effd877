"""A model's tokenizer, made from the bundle that its worker sent: no disk, no hub."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer as Library

from services.router.limits import check_text_size, num_bytes
from services.router.template import ChatTemplate, from_tokenizer_config, special_tokens
from services.router.text.detokenizer import Vocabulary
from services.router.text.threads import TextThreads

# Texts of one request are tokenized so many bytes at a time; texts that are longer, one at a time over all requests.
_GROUP_BYTES = 64 * 1024


class Tokenizer:
    """Text to ids and back. Special tokens that a text spells out become such tokens, as in vLLM and transformers."""

    def __init__(self, tokenizer_json: bytes, tokenizer_config_json: bytes, threads: TextThreads) -> None:
        """`threads`: where long texts are worked on. Raises ValueError where the bundle is none."""
        self.threads = threads
        try:
            self._library = Library.from_str(tokenizer_json.decode())
            # A tokenizer_config.json, as the worker read it.
            self.config: dict[str, Any] = json.loads(tokenizer_config_json or b"{}")
            # A tokenizer.json may ask for truncation or padding of training batches; a prompt is neither.
            self._library.no_truncation()
            self._library.no_padding()
            self.chat_template: ChatTemplate | None = from_tokenizer_config(self.config)
            # For requests with tools, where the model has one of its own for them.
            self.tool_template: ChatTemplate | None = from_tokenizer_config(self.config, "tool_use")
            self.special_tokens = special_tokens(self.config)
            self.vocabulary = Vocabulary(self._library)
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"the tokenizer bundle cannot be read: {error}") from error
        # No token of the vocabulary has more characters, so a text has at least len(text) / this many tokens.
        self.max_token_chars = max((len(token) for token in self._library.get_vocab()), default=1)

    def warm_templates(self) -> list[str]:
        """As in ChatTemplate.warm. Returns what is wrong with the templates."""
        templates = [template for template in (self.chat_template, self.tool_template) if template is not None]
        return [problem for template in templates if (problem := template.warm()) is not None]

    # The library lets other threads run while it works on a batch, and not while it works on a single text.

    async def encode(
        self, texts: Sequence[str], add_special_tokens: bool = True, params: Sequence[str] = ()
    ) -> list[list[int]]:
        """The token ids of each text. `params`: the texts' names in errors. Raises ApiError when a text is longer than
        MAX_TEXT_BYTES, or too many long texts wait."""

        def work(group: Sequence[str]) -> list[list[int]]:
            encodings = self._library.encode_batch_fast(group, add_special_tokens=add_special_tokens)
            return [encoding.ids for encoding in encodings]

        return await self._in_groups(texts, params, work)

    async def encode_cut(
        self,
        texts: Sequence[str],
        add_special_tokens: bool,
        max_tokens: int,
        *,
        keeps_end: bool = False,
        params: Sequence[str] = (),
    ) -> list[list[int]]:
        """As `encode`, but for what goes beyond `max_tokens`: texts end sooner then (or with `keeps_end` begin later),
        and special tokens stay."""
        num_special = self._library.num_special_tokens_to_add(is_pair=False) if add_special_tokens else 0

        def work(group: Sequence[str]) -> list[list[int]]:
            encodings = self._library.encode_batch(group, add_special_tokens=False)
            for encoding in encodings:
                encoding.truncate(max(0, max_tokens - num_special), direction="left" if keeps_end else "right")
            return [self._library.post_process(e, add_special_tokens=add_special_tokens).ids for e in encodings]

        return await self._in_groups(texts, params, work)

    async def _in_groups(
        self, texts: Sequence[str], params: Sequence[str], work: Callable[[Sequence[str]], list[list[int]]]
    ) -> list[list[int]]:
        """`work` on all of the texts, a bounded number of bytes at a time."""
        sizes = list(map(num_bytes, texts))
        for index, size in enumerate(sizes):
            check_text_size(size, params[index] if params else None)
        result: list[list[int]] = []
        for group, size in _groups(texts, sizes):
            if size > _GROUP_BYTES:
                result += await self.threads.run_alone(functools.partial(work, group))
            else:
                result += await self.threads.run(size, functools.partial(work, group))
        return result

    async def decode(self, prompts: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        """The text of each list of token ids. Raises ApiError when too many long texts wait."""
        return await self.threads.run(
            sum(map(len, prompts)),
            lambda: self._library.decode_batch(prompts, skip_special_tokens=skip_special_tokens),
        )


def _groups(texts: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[Sequence[str], int]]:
    """The texts in order, and each group's bytes. A group has _GROUP_BYTES at most, or is one text that is longer."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > _GROUP_BYTES:
            yield texts[start:index], total
            start, total = index, 0
        total += size
    if texts:
        yield texts[start:], total
