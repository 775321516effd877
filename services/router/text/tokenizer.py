"""A model's tokenizer, made from the bundle that its worker sent: no disk, no hub."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tokenizers import Tokenizer as Library

from services.router.errors import overloaded
from services.router.limits import text_size
from services.router.limits.large_bodies import LargeBodies
from services.router.template.chat_template import ChatTemplate, from_tokenizer_config, special_tokens
from services.router.template.foreign import ForeignTemplates
from services.router.text.detokenizer import Vocabulary

# Below this, working on a text takes less than handing it to a thread would cost the event loop.
_INLINE_CHARS = 2048
# Long texts that wait for a thread, over all models.
_MAX_PENDING = 256
# Texts of one request are tokenized so many bytes at a time; texts that are longer, one at a time over all requests.
_GROUP_BYTES = 64 * 1024

R = TypeVar("R")


class TextThreads:
    """A few threads for work on long texts, so that it does not hold up the event loop; and a process for strangers'
    templates."""

    def __init__(self, num_threads: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._num_pending = 0
        # Renders the templates that requests bring.
        self.foreign_templates = ForeignTemplates()
        # What may be converted at a time; its work is done on these threads.
        self.large_bodies = LargeBodies()
        # One thread, because the library's memory stays with the thread that worked on a text.
        self._long_texts = ThreadPoolExecutor(1, thread_name_prefix="long-texts")

    @property
    def num_pending(self) -> int:
        """Long texts that are worked on or wait for it."""
        return self._num_pending

    async def run(self, size: int, work: Callable[[], R]) -> R:
        """`work()`; beside the event loop if `size` (characters, tokens) is large. Raises ApiError when overloaded."""
        if size <= _INLINE_CHARS:
            return work()
        self._check_room()
        return await self.run_beside(work)

    async def run_alone(self, work: Callable[[], R]) -> R:
        """As `run`, for work that takes much memory: one at a time."""
        self._check_room()
        return await self._run_on(self._long_texts, work)

    async def run_beside(self, work: Callable[[], R]) -> R:
        """`work()`, beside the event loop in any case. A caller that is cancelled goes on when the work has ended, or
        at once where it had not begun and never will: what the caller holds is in use until then."""
        return await self._run_on(self._executor, work)

    async def _run_on(self, executor: ThreadPoolExecutor, work: Callable[[], R]) -> R:
        running = executor.submit(work)
        self._num_pending += 1
        ended = asyncio.wrap_future(running)
        try:
            await asyncio.wait((ended,))
            return ended.result()
        except asyncio.CancelledError:
            running.cancel()
            await _wait_in_any_case(ended)
            raise
        finally:
            self._num_pending -= 1
            # An error of the work refers to this frame, which would keep it until a collection.
            del running, ended

    def _check_room(self) -> None:
        """Raises ApiError when too much waits."""
        if self._num_pending >= _MAX_PENDING:
            raise overloaded("Too many long texts are waiting to be tokenized.")

    def start(self, work: Callable[[], object]) -> None:
        """Runs `work` some time; nobody waits for it."""
        self._executor.submit(work)

    def close(self) -> None:
        for executor in (self._executor, self._long_texts):
            executor.shutdown(wait=False, cancel_futures=True)
        self.foreign_templates.close()


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
        sizes = list(map(text_size.num_bytes, texts))
        for index, size in enumerate(sizes):
            if size > text_size.MAX_TEXT_BYTES:
                raise text_size.text_too_long(size, params[index] if params else None)
        result: list[list[int]] = []
        for group, num_bytes in _groups(texts, sizes):
            if num_bytes > _GROUP_BYTES:
                result += await self.threads.run_alone(functools.partial(work, group))
            else:
                result += await self.threads.run(num_bytes, functools.partial(work, group))
        return result

    async def decode(self, prompts: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        """The text of each list of token ids. Raises ApiError when too many long texts wait."""
        return await self.threads.run(
            sum(map(len, prompts)),
            lambda: self._library.decode_batch(prompts, skip_special_tokens=skip_special_tokens),
        )


async def _wait_in_any_case(ended: asyncio.Future[Any]) -> None:
    """However often the caller is cancelled meanwhile."""
    while not ended.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((ended,))
    if not ended.cancelled():
        # Nobody else asks for it, and asyncio would log that.
        ended.exception()


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
