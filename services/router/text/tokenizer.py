"""A model's tokenizer, made from the files that the worker sent, without access to a disk or the Hugging Face Hub."""

from __future__ import annotations

import functools
import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tokenizers import Tokenizer as Library

from services.router.errors import is_failure
from services.router.limits import check_text_size, num_bytes
from services.router.template import ChatTemplate, from_tokenizer_config, special_tokens
from services.router.text.detokenizer import Vocabulary
from services.router.text.pairs import PairTemplate, TextPart
from services.router.text.threads import TextThreads

# A request's texts are tokenized in groups of at most this many bytes. A longer text is a separate group; only one such
# text is tokenized at a time, across all requests.
_GROUP_BYTES = 64 * 1024

T = TypeVar("T")


class Tokenizer:
    """Converts text to token ids and back. Text that spells a special token becomes that token, as in vLLM."""

    def __init__(self, tokenizer_json: bytes, tokenizer_config_json: bytes, threads: TextThreads) -> None:
        """`threads`: threads for work on long texts. Raises ValueError if the files cannot be read."""
        self.threads = threads
        try:
            self._library = Library.from_str(tokenizer_json.decode())
            # Content of tokenizer_config.json, from the worker.
            self.config: dict[str, Any] = json.loads(tokenizer_config_json or b"{}")
            # A tokenizer.json can enable truncation or padding for training batches; prompts need neither.
            self._library.no_truncation()
            self._library.no_padding()
            self.chat_template: ChatTemplate | None = from_tokenizer_config(self.config)
            # Template for requests with tools, if the model has a separate one.
            self.tool_template: ChatTemplate | None = from_tokenizer_config(self.config, "tool_use")
            self.special_tokens = special_tokens(self.config)
            self.vocabulary = Vocabulary(self._library)
        except BaseException as error:  # the library raises plain Exception, and panics
            if not is_failure(error):
                raise
            raise ValueError(f"the tokenizer bundle cannot be read: {error}") from error
        # Length of the longest token. A text has at least len(text) / max_token_chars tokens.
        self.max_token_chars = max((len(token) for token in self._library.get_vocab()), default=1)

    def warm_templates(self) -> list[str]:
        """Compiles and probes the chat templates, so that the first request does not wait for it. Returns an error text
        for each template that cannot be parsed."""
        templates = [template for template in (self.chat_template, self.tool_template) if template is not None]
        return [problem for template in templates if (problem := template.warm()) is not None]

    # The library releases the GIL for a batch, but not for a single text, so the methods below use batches.

    async def encode(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = True,
        params: Sequence[str] = (),
        *,
        prefix: str = "",
    ) -> list[list[int]]:
        """Returns the token ids of each text with `prefix` in front. `params`: the texts' names in errors. Raises
        ApiError if a text without `prefix` is longer than MAX_TEXT_BYTES, or if too many long texts are waiting to be
        tokenized."""

        def work(group: Sequence[str]) -> list[list[int]]:
            encodings = self._library.encode_batch_fast(group, add_special_tokens=add_special_tokens)
            return [encoding.ids for encoding in encodings]

        return await self._in_groups(texts, params, work, prefix)

    async def encode_cut(
        self,
        texts: Sequence[str],
        add_special_tokens: bool,
        max_tokens: int,
        *,
        keeps_end: bool = False,
        params: Sequence[str] = (),
        prefix: str = "",
    ) -> list[list[int]]:
        """Encodes as `encode` does, and cuts each text to `max_tokens` tokens: drops its end or, with `keeps_end`, its
        beginning. `prefix` is cut like a part of the text. The special tokens that the tokenizer adds count towards
        `max_tokens` and are not cut off."""
        num_special = self._library.num_special_tokens_to_add(is_pair=False) if add_special_tokens else 0

        def work(group: Sequence[str]) -> list[list[int]]:
            encodings = self._library.encode_batch(group, add_special_tokens=False)
            for encoding in encodings:
                encoding.truncate(max(0, max_tokens - num_special), direction="left" if keeps_end else "right")
            return [self._library.post_process(e, add_special_tokens=add_special_tokens).ids for e in encodings]

        return await self._in_groups(texts, params, work, prefix)

    async def encode_parts(
        self, texts: Sequence[str], max_tokens: int | None, params: Sequence[str] = ()
    ) -> list[TextPart]:
        """Encodes texts without special tokens, as parts of pairs. Keeps at most `max_tokens` token ids of each. Raises
        ApiError as `encode` does."""

        def work(group: Sequence[str]) -> list[TextPart]:
            encodings = self._library.encode_batch_fast(group, add_special_tokens=False)
            return [TextPart(array("I", encoding.ids[:max_tokens]), len(encoding)) for encoding in encodings]

        return await self._in_groups(texts, params, work)

    def pair_template(self, *, add_special_tokens: bool) -> PairTemplate:
        """Returns how the tokenizer writes pairs of texts."""
        names = self.config.get("model_input_names")
        has_types = not isinstance(names, list) or "token_type_ids" in names
        return PairTemplate.of(self._library, add_special_tokens=add_special_tokens, has_types=has_types)

    async def _in_groups(
        self,
        texts: Sequence[str],
        params: Sequence[str],
        work: Callable[[Sequence[str]], list[T]],
        prefix: str = "",
    ) -> list[T]:
        """Calls `work` for one group of texts at a time, each text with `prefix` in front, and returns the results of
        all texts. Raises ApiError as `encode` does."""
        sizes = list(map(num_bytes, texts))
        for index, size in enumerate(sizes):
            # `prefix` does not count. It is short, and clients do not know it.
            check_text_size(size, params[index] if params else None)
        num_prefix_bytes = num_bytes(prefix)
        result: list[T] = []
        for texts_of_group, size in _groups(texts, [size + num_prefix_bytes for size in sizes]):
            group = [prefix + text for text in texts_of_group] if prefix else texts_of_group
            if size > _GROUP_BYTES:
                result += await self.threads.run_alone(functools.partial(work, group))
            else:
                result += await self.threads.run(size, functools.partial(work, group))
        return result

    async def decode(self, prompts: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        """Returns the text of each list of token ids. Raises ApiError if too many long texts already wait for a
        thread."""
        return await self.threads.run(
            sum(map(len, prompts)),
            lambda: self._library.decode_batch(prompts, skip_special_tokens=skip_special_tokens),
        )


def _groups(texts: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[Sequence[str], int]]:
    """Yields groups of consecutive texts, each with its size in bytes. A group has at most _GROUP_BYTES, or is a single
    longer text."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > _GROUP_BYTES:
            yield texts[start:index], total
            start, total = index, 0
        total += size
    if texts:
        yield texts[start:], total
