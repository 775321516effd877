"""Many prompts under way at the router of a stack, on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from quire.cli.supervisor import StackError
from quire.client.aio import AsyncClient
from quire.client.errors import QuireError
from quire.client.options import Options
from quire.client.results import Choice, Result
from quire.client.retries import Retries
from quire.offline.outputs import RequestOutput, completion_output
from quire.offline.prompts import Prompt
from quire.offline.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams

R = TypeVar("R")

# Of one call: a part that loads a large model again takes minutes, and the pauses between tries are seconds.
_MAX_RETRIES = 64


@dataclass(frozen=True, slots=True)
class Request:
    """`params` None: the model's own defaults."""

    request_id: str
    prompt: Prompt
    params: SamplingParams | None
    priority: int


class Turns:
    """Up to `count` sequences at a time; requests get theirs in the order in which they ask."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = asyncio.Semaphore(count)
        self._first_in_line = asyncio.Lock()

    @asynccontextmanager
    async def take(self, wanted: int) -> AsyncIterator[None]:
        """A request that wants more than there are gets all."""
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
    """Made and used on one event loop. `failure`: why the stack is there no more, or None while it is."""

    def __init__(self, address: str, api_key: str | None, max_num_seqs: int, failure: Callable[[], str | None]) -> None:
        """`max_num_seqs`: sequences under way at most."""
        self._client = AsyncClient(address, api_key=api_key, max_retries=0)
        self._max_num_seqs = max_num_seqs
        self._turns = Turns(max_num_seqs)
        self._failure = failure
        self._token_texts: dict[int, str] = {}

    async def close(self) -> None:
        await self._client.close()

    async def answer(self, requests: Sequence[Request], on_done: Callable[[int], None]) -> list[RequestOutput]:
        """In the order of the requests. `on_done` is called with 1 for each. Raises QuireError where the router refuses
        one, and StackError where the stack is gone; the others end with it."""
        outputs: dict[int, RequestOutput] = {}
        remaining = iter(enumerate(requests))

        async def work() -> None:
            for index, request in remaining:
                num_seqs = 1 if request.params is None else request.params.n
                async with self._turns.take(num_seqs):
                    try:
                        outputs[index] = await self._output(request)
                    except QuireError as error:
                        error.add_note(f"This is about prompt {index} of {len(requests)}.")
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
        prompt, params = request.prompt, request.params
        text, token_ids = await self._encoded(prompt)
        options = Options(max_tokens=DEFAULT_MAX_TOKENS) if params is None else params.options()
        options["priority"] = request.priority
        options["cache_salt"] = prompt.cache_salt or ""
        result: Result = await self._patiently(lambda: self._client.generate(token_ids, **options))
        token_texts = None
        if params is not None and params.logprobs is not None:
            entries = [entry for choice in result.choices for entry in choice.logprobs]
            token_texts = await self._texts_of(
                {token_id for entry in entries for token_id in (entry.token_id, *(top[0] for top in entry.top))}
            )
        outputs = [
            completion_output(index, choice, await self._stop_reason(choice, params), token_texts)
            for index, choice in enumerate(result.choices)
        ]
        return RequestOutput(request.request_id, text, token_ids, outputs, result.usage.cached_tokens)

    async def _encoded(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """The prompt's text, if it was not given as token ids, and its token ids."""
        if prompt.token_ids is not None:
            return None, list(prompt.token_ids)
        given = prompt.text if prompt.text is not None else prompt.messages
        assert given is not None
        token_ids = await self._patiently(lambda: self._client.tokenize(given))
        if prompt.text is not None:
            return prompt.text, token_ids
        return await self._patiently(lambda: self._client.detokenize(token_ids)), token_ids

    async def _stop_reason(self, choice: Choice, params: SamplingParams | None) -> int | str | None:
        if params is None or choice.finish_reason != "stop" or not choice.token_ids:
            return None
        last = choice.token_ids[-1]
        if last in (params.stop_token_ids or ()):
            return last
        if not params.stop_strings:
            return None
        # The text ends before the stop string, and the tokens with it. A first space may be lost
        # where the prompt is not in front.
        whole = await self._patiently(lambda: self._client.detokenize(choice.token_ids))
        start = max(0, len(choice.text) - 1)
        found = [(whole.find(stop, start), stop) for stop in params.stop_strings]
        return min((place for place in found if place[0] >= 0), default=(0, None))[1]

    async def _texts_of(self, token_ids: set[int]) -> dict[int, str]:
        """Each token's text; every token is asked for once."""
        for token_id in token_ids - self._token_texts.keys():
            self._token_texts[token_id] = await self._patiently(
                lambda token_id=token_id: self._client.detokenize([token_id])  # type: ignore[misc]
            )
        return self._token_texts

    async def _patiently(self, call: Callable[[], Awaitable[R]]) -> R:
        """What it brings, once parts that were lost are back. Nobody has seen anything of an answer that broke off, so
        it begins again."""
        retries = Retries(_MAX_RETRIES, None)
        while True:
            try:
                return await call()
            except QuireError as error:
                if (reason := self._failure()) is not None:
                    raise StackError(reason) from error
                pause = retries.delay(error)
            await asyncio.sleep(pause)
