"""Sends many prompts to a stack's router and collects the outputs, with a limit on the sequences in progress."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from quire.cli.supervisor import StackError
from quire.client.aio import AsyncClient
from quire.client.errors import QuireError
from quire.client.options import Options
from quire.client.results import Choice, Embeddings, Result
from quire.client.retries import Retries
from quire.offline.outputs import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    logprobs_of,
    token_ids_of,
)
from quire.offline.pooling_params import PoolingParams
from quire.offline.prompts import Prompt
from quire.offline.refusals import name_prompt
from quire.offline.request_metrics import request_metrics
from quire.offline.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams

R = TypeVar("R")

# Maximum number of retries of one call. It is high because a restarted worker can take minutes to load a large model,
# while the pause before a retry is at most 8 s.
_MAX_RETRIES = 64
# Maximum number of token ids in one call of AsyncClient.token_texts.
_MAX_TOKENS_PER_CALL = 16_384


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to answer. `params`: None for the model's own defaults. `seed`: used if `params` has no seed; None: the
    router draws one."""

    request_id: str
    prompt: Prompt
    params: SamplingParams | None
    priority: int
    seed: int | None = None
    # Time at which the program called `LLM`: in seconds since the epoch, and on the clock of time.monotonic.
    arrival_time: float = field(default_factory=time.time)
    arrived_at: float = field(default_factory=time.monotonic)

    @property
    def num_seqs(self) -> int:
        return 1 if self.params is None else self.params.num_candidates


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A prompt to embed: a text or token ids."""

    request_id: str
    prompt: Prompt
    params: PoolingParams
    # See EmbedRequest. None: the model's default.
    input_type: str | None = None
    num_seqs: int = 1


class Asked(Protocol):
    @property
    def num_seqs(self) -> int:
        """Number of sequences that the request runs concurrently."""

    @property
    def prompt(self) -> Prompt: ...


Q = TypeVar("Q", bound=Asked)


class Turns:
    """Lets at most `count` sequences run at the same time. Requests start in the order in which they call `take`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = asyncio.Semaphore(count)
        self._first_in_line = asyncio.Lock()

    @asynccontextmanager
    async def take(self, wanted: int) -> AsyncIterator[None]:
        """Waits until `wanted` more sequences can run, and reserves their places until the `async with` block ends. If
        `wanted` is higher than `count`, takes all `count` places."""
        taken = 0
        try:
            async with self._first_in_line:
                while taken < min(wanted, self._count):
                    await self._free.acquire()
                    taken += 1
            yield
        finally:
            for _ in range(taken):
                self._free.release()


class Engine:
    """Sends requests to a router. Create and use it on one event loop. `failure`: returns why the stack has failed, or
    None while it runs."""

    def __init__(self, address: str, api_key: str | None, max_num_seqs: int, failure: Callable[[], str | None]) -> None:
        """`max_num_seqs`: maximum number of running sequences."""
        self._client = AsyncClient(address, api_key=api_key, max_retries=0)
        self._max_num_seqs = max_num_seqs
        self._turns = Turns(max_num_seqs)
        self._failure = failure
        self._token_texts: dict[int, str] = {}

    async def close(self) -> None:
        await self._client.close()

    async def answer(self, requests: Sequence[Request], on_done: Callable[[int], None]) -> list[RequestOutput]:
        """Answers the requests and returns the outputs in the same order. Calls `on_done(1)` after each answer. Raises
        QuireError if the router refuses a request, and StackError if the stack has failed; either error cancels the
        other requests."""
        return await self._all(requests, self._output, on_done)

    async def embed(
        self, requests: Sequence[EmbeddingRequest], on_done: Callable[[int], None]
    ) -> list[EmbeddingRequestOutput]:
        """Embeds the requests' prompts. Order, `on_done` and errors are the same as in `answer`."""
        return await self._all(requests, self._embedding, on_done)

    async def _all(
        self, requests: Sequence[Q], answer: Callable[[Q], Awaitable[R]], on_done: Callable[[int], None]
    ) -> list[R]:
        outputs: dict[int, R] = {}
        remaining = iter(enumerate(requests))

        async def work() -> None:
            for index, request in remaining:
                async with self._turns.take(request.num_seqs):
                    try:
                        outputs[index] = await answer(request)
                    except QuireError as error:
                        name_prompt(error, request.prompt.name)
                        error.add_note(f"The error concerns the prompt with index {index} of {len(requests)} prompts.")
                        raise
                on_done(1)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._max_num_seqs, len(requests))):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [outputs[index] for index in range(len(requests))]

    async def _output(self, request: Request) -> RequestOutput:
        params = request.params
        text, given = await self._prompt(request.prompt)
        options = Options(max_tokens=DEFAULT_MAX_TOKENS) if params is None else params.options()
        options["priority"] = request.priority
        if request.seed is not None:
            options.setdefault("seed", request.seed)
        options["cache_salt"] = request.prompt.cache_salt or ""
        options["return_prompt_token_ids"] = True
        result: Result = await self._patiently(lambda: self._client.generate(given, **options))
        seconds = time.monotonic() - request.arrived_at
        choices = best_choices(result.choices, 1 if params is None else params.n)
        prompt_entries = choices[0].prompt_logprobs
        tells_logprobs = params is not None and params.logprobs is not None
        texts: Mapping[int, str] = {}
        if params is None or params.detokenize:
            entries = [entry for choice in choices for entry in choice.logprobs] if tells_logprobs else []
            texts = await self._texts_of(token_ids_of([*entries, *prompt_entries]))
        return RequestOutput(
            request.request_id,
            text,
            list(result.prompt_token_ids),
            [_completion(index, choice, params, texts) for index, choice in enumerate(choices)],
            result.usage.cached_tokens,
            None if params is None or params.prompt_logprobs is None else [None, *logprobs_of(prompt_entries, texts)],
            metrics=request_metrics(request.arrival_time, seconds, result.timings, result.usage.completion_tokens),
        )

    async def _embedding(self, request: EmbeddingRequest) -> EmbeddingRequestOutput:
        prompt = request.prompt
        options = request.params.options()
        options["cache_salt"] = prompt.cache_salt or ""
        options["return_prompt_token_ids"] = True
        if request.input_type is not None:
            options["input_type"] = request.input_type
        inputs = [prompt.text or ""] if prompt.token_ids is None else [prompt.token_ids]
        result: Embeddings = await self._patiently(lambda: self._client.embed(inputs, **options))
        (vector,), (token_ids,) = result.vectors, result.prompt_token_ids
        return EmbeddingRequestOutput(request.request_id, EmbeddingOutput(list(vector)), list(token_ids))

    async def _prompt(self, prompt: Prompt) -> tuple[str | None, str | Sequence[int]]:
        """Returns the prompt's text for the output (None if the caller gave token ids), and what to send to the router:
        text or token ids. A conversation is first rendered and tokenized by the router."""
        if prompt.token_ids is not None:
            return None, prompt.token_ids
        if prompt.text is not None:
            return prompt.text, prompt.text
        messages, template = prompt.messages, prompt.template or {}
        assert messages is not None
        token_ids = await self._patiently(lambda: self._client.tokenize(messages, **template))
        return await self._patiently(lambda: self._client.detokenize(token_ids)), token_ids

    async def _texts_of(self, token_ids: set[int]) -> Mapping[int, str]:
        """Returns a map from token id to text that contains at least `token_ids`. Requests each text from the router
        only once, and caches it."""
        missing = sorted(token_ids - self._token_texts.keys())
        for start in range(0, len(missing), _MAX_TOKENS_PER_CALL):
            part = missing[start : start + _MAX_TOKENS_PER_CALL]
            texts = await self._patiently(functools.partial(self._client.token_texts, part))
            self._token_texts.update(zip(part, texts, strict=True))
        return self._token_texts

    async def _patiently(self, call: Callable[[], Awaitable[R]]) -> R:
        """Awaits `call()` and retries it while failed parts restart. A retry is safe after an incomplete answer,
        because the program has not seen any of the answer. Raises QuireError, and StackError if the stack has
        failed."""
        retries = Retries(_MAX_RETRIES, None)
        while True:
            try:
                return await call()
            except QuireError as error:
                if (reason := self._failure()) is not None:
                    raise StackError(reason) from error
                pause = retries.delay(error)
            await asyncio.sleep(pause)


def best_choices(choices: Sequence[Choice], count: int) -> Sequence[Choice]:
    """Returns the `count` choices with the highest log probability per token, best first. If there are at most `count`
    choices, returns all of them in their original order."""
    if len(choices) <= count:
        return choices
    return sorted(choices, key=lambda choice: -_mean_logprob(choice))[:count]


def _mean_logprob(choice: Choice) -> float:
    return sum(entry.logprob for entry in choice.logprobs) / max(1, len(choice.logprobs))


def _completion(
    index: int, choice: Choice, params: SamplingParams | None, texts: Mapping[int, str]
) -> CompletionOutput:
    tells_logprobs = params is not None and params.logprobs is not None
    return CompletionOutput(
        index,
        choice.text if params is None or params.detokenize else "",
        list(choice.token_ids),
        sum(entry.logprob for entry in choice.logprobs) if tells_logprobs else None,
        logprobs_of(choice.logprobs, texts) if tells_logprobs else None,
        choice.finish_reason,
        choice.stop_reason,
    )
