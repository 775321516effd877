"""Computes the embeddings of prompts, or their scores, for every API.

Each prompt is a separate sequence, which is placed, resubmitted and counted like a sequence that generates text.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing

from services.router.columns import ids_to_bytes
from services.router.dispatch import Mailbox, Pool, Submission, SubmittedSequence
from services.router.embedding.request import PooledRequest
from services.router.errors import ApiError, ErrorKind, internal
from services.router.generation import Generator
from services.router.metrics import ChoiceEnd, RequestMetrics
from shared.placement import prompt_key

# Maximum number of prompts of one request that schedulers have at a time, so that a long list does not fill their
# queues.
MAX_OPEN = 256
# Maximum number of tokens of these prompts together; the last prompt may exceed it. A long query that is paired with
# each of 2,048 documents has as many tokens as a thousand usual requests.
MAX_OPEN_TOKENS = 524_288


class Embedder:
    def __init__(self, generator: Generator, metrics: RequestMetrics) -> None:
        """`generator`: has a limit on requests in progress, toward which embedding requests count, too."""
        self._generator = generator
        self._placement = generator.placement
        self._metrics = metrics

    async def all_vectors(self, request: PooledRequest) -> list[bytes]:
        """Returns the vectors in the order of the prompts. Raises ApiError."""
        vectors = [b""] * request.num_prompts
        async with aclosing(self.embed(request)) as done:
            async for index, vector in done:
                vectors[index] = vector
        return vectors

    async def embed(self, request: PooledRequest) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yields each prompt's index and vector (float32, little-endian) as soon as the vector is complete. Close the
        returned generator with `aclosing`, which aborts the sequences that still run. Raises ApiError."""
        info = request.model.info
        self._generator.check_room(info)
        self._generator.began()
        timer = self._metrics.start(info.name, info.version)
        mailbox, left = Mailbox(self._generator.deliveries), iter(range(request.num_prompts))
        timeout, clock = request.caller.timeout, asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        num_bytes = 4 * request.num_values
        indices: dict[SubmittedSequence, int] = {}
        num_done = num_open_tokens = 0
        try:
            while num_done < request.num_prompts:
                while len(indices) < MAX_OPEN and num_open_tokens < MAX_OPEN_TOKENS:
                    if (index := next(left, None)) is None:
                        break
                    submission = _submission(request, index, deadline, mailbox)
                    prompt = submission.prompt_token_ids
                    await self._generator.prompt_log.write(submission.request_id, request.model, prompt)
                    num_open_tokens += len(prompt)
                    indices[submission.sequences[0]] = index
                    self._placement.submit(submission)
                for sequence in await mailbox.take():
                    if sequence.finish_reason is None:
                        continue
                    if len(sequence.embedding) != num_bytes:
                        raise internal()
                    timer.ended(indices[sequence], ChoiceEnd.of(sequence, "stop"))
                    num_done += 1
                    num_open_tokens -= len(sequence.submission.prompt_token_ids)
                    self._placement.close(sequence.submission)
                    yield indices.pop(sequence), sequence.embedding
        except ApiError as error:
            timer.failed(error.kind)
            if error.kind is ErrorKind.OVERLOADED:
                self._generator.rejected(info)
            raise
        finally:
            for sequence in indices:
                self._placement.close(sequence.submission)
            open_ones = [sequence.num_parts_lost for sequence in indices]
            timer.closed(completed=num_done == request.num_prompts, losses=open_ones)
            self._generator.ended()


def _submission(request: PooledRequest, index: int, deadline: float | None, mailbox: Mailbox) -> Submission:
    info, prompt = request.model.info, request.prompt(index)
    return Submission(
        request_id=request.caller.request_id,
        model=info,
        prompt_token_ids=prompt,
        work=Pool(request.params(index)),
        n=1,
        deadline=deadline,
        traceparent=request.traceparent,
        mailbox=mailbox,
        cache_salt=request.cache_salt,
        priority=request.priority,
        tenant=request.caller.tenant,
        affinity=prompt_key(info.name, request.cache_salt, ids_to_bytes(prompt)),
    )


def floats_of(vector: bytes) -> array[float]:
    """Converts a vector of float32, little-endian, to an array."""
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values
