"""Generates text for requests given as token ids. All APIs use it.

A Generation runs one or more prompts, each with n choices. It yields deltas whenever there are any and the caller is
ready for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace

from services.router.columns import ids_to_bytes
from services.router.dispatch import (
    Deliveries,
    FinishReason,
    Generate,
    Mailbox,
    Placement,
    Submission,
    SubmittedSequence,
)
from services.router.errors import ApiError, ErrorKind, invalid, overloaded
from services.router.generation.choice_delta import MAX_CHARS_OF_DELTA, ChoiceDelta, in_short_deltas
from services.router.generation.prompt_log import PromptLog
from services.router.generation.request import GenerationRequest
from services.router.generation.usage import Timings, Usage
from services.router.logprobs import TokenLogprob, TokenLogprobs
from services.router.metrics import ChoiceEnd, RequestMetrics
from services.router.model import ModelInfo
from services.router.text import StopMatcher, StopStrings, TextOutput
from shared.placement import prompt_key

# Approximate number of sequences that are submitted in one turn of the event loop.
_SUBMITTED_AT_A_TIME = 64
# A round of deltas ends after _ROUND_TOKENS output tokens, or after the log probabilities of _ROUND_LOGPROBS output or
# prompt tokens.
_ROUND_TOKENS = 512
_ROUND_LOGPROBS = 128


class Generator:
    """Starts generations, and limits the number of requests in progress."""

    def __init__(
        self, placement: Placement, metrics: RequestMetrics, max_num_requests: int, prompt_log: PromptLog
    ) -> None:
        self.placement = placement
        self.prompt_log = prompt_log
        self.deliveries = Deliveries()
        self._metrics = metrics
        self._max_num_requests = max_num_requests
        self._num_requests = 0

    @property
    def num_requests(self) -> int:
        return self._num_requests

    def start(self, request: GenerationRequest) -> Generation:
        """Returns a generation, which submits the prompts when the caller iterates over its `deltas`. The generation is
        a context manager that aborts its running sequences on exit. Raises ApiError if too many requests are in
        progress."""
        self.check_room(request.model.info)
        generation = Generation(self, request, self._metrics)
        self.began()
        return generation

    def check_number(self, number: int, param: str) -> None:
        """Raises ApiError if one client request is this many requests to the router, and these are too many even for a
        router without other work. `param`: the field that lists them."""
        if number > self._max_num_requests:
            message = (
                f"Invalid '{param}': {number} requests; this router has at most {self._max_num_requests} at a time."
            )
            raise invalid(message, param, "array_above_max_length")

    def check_room(self, model: ModelInfo) -> None:
        """Raises ApiError if too many requests are in progress. `model`: the one that this request is for."""
        if self._num_requests >= self._max_num_requests:
            self._metrics.of_model(model.name, model.version).rejections["max_num_requests"] += 1
            raise overloaded(f"This router already has {self._max_num_requests} requests in progress.")

    def began(self) -> None:
        """Counts a request as in progress, until `ended` is called."""
        self._num_requests += 1

    def ended(self) -> None:
        self._num_requests -= 1

    def rejected(self, model: ModelInfo) -> None:
        """Counts a request for `model` whose scheduler had no room for it."""
        self._metrics.of_model(model.name, model.version).rejections["max_num_queued_reqs"] += 1


class Generation:
    def __init__(self, generator: Generator, request: GenerationRequest, metrics: RequestMetrics) -> None:
        self._generator = generator
        self._placement = generator.placement
        self._request = request
        info = request.model.info
        self._timer = metrics.start(info.name, info.version, request.n)
        self._mailbox = Mailbox(generator.deliveries, request.turn_id)
        self._is_closed = False
        self._indices: dict[SubmittedSequence, int] = {}
        self._outputs: list[TextOutput] = []
        self._num_taken: list[int] = []
        self._finish_reasons: list[FinishReason | None] = []
        # For each choice: how often a part had been lost that worked on it, when its last tokens came.
        self._num_parts_lost: list[int] = []
        # Times at which a choice went on after the loss of a part, on the monotonic clock.
        self._recovered_at: list[float] = []
        # For each prompt: the number of its tokens that were found in the prefix cache. It is the minimum over the
        # prompt's choices, because the other choices can find blocks that the first one computed.
        self._cached_tokens: list[int | None] = [None] * len(request.prompts)
        # Each submission and its sequences, which a closed submission no longer has.
        self._submissions: dict[Submission, list[SubmittedSequence]] = {}
        self._num_open = len(request.prompts) * request.n

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def usage(self) -> Usage:
        """The usage so far; final after `deltas` has ended."""
        return Usage(
            prompt_tokens=sum(len(prompt) for prompt in self._request.prompts),
            completion_tokens=sum(output.num_tokens for output in self._outputs),
            cached_tokens=sum(count or 0 for count in self._cached_tokens),
            seconds_to_first_token=self._timer.seconds_to_first_token,
        )

    @property
    def timings(self) -> Timings:
        """The timings so far; final after `deltas` has ended."""
        timer = self._timer
        scheduled = [at for sequence in self._indices if (at := sequence.scheduled_at) is not None]
        moments = (min(scheduled, default=None), timer.first_token_at, timer.last_token_at)
        queue, first, last = (None if moment is None else moment - timer.start for moment in moments)
        recovered = tuple(moment - timer.start for moment in self._recovered_at)
        return Timings(queue, first, last, recovered, time.monotonic() - timer.start)

    @property
    def finish_reasons(self) -> list[FinishReason | None]:
        return self._finish_reasons

    async def deltas(self) -> AsyncIterator[list[ChoiceDelta]]:
        """Submits the prompts. Then waits for new deltas and yields them, in lists, until every choice has finished.
        Raises ApiError."""
        try:
            await self._submit()
            while self._num_open:
                if not self._mailbox.has_news:
                    self._go_on()
                news = await self._mailbox.take()
                if self._request.sampling.prompt_logprobs is not None:
                    news = self._with_prompts(news)
                for index, deltas in enumerate(self._rounds(news)):
                    if index:
                        await asyncio.sleep(0)
                    yield deltas
                    # The caller has written these deltas when it asks for more, so the time includes the write.
                    self._timer.delivered(time.monotonic() - self._mailbox.news_since)
        except ApiError as error:
            self._timer.failed(error.kind)
            if error.kind is ErrorKind.OVERLOADED:
                self._generator.rejected(self._request.model.info)
            raise

    def close(self) -> None:
        """Aborts the sequences that still run. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for submission in self._submissions:
            self._placement.close(submission)
        open_ones = [sequence for sequence, index in self._indices.items() if self._finish_reasons[index] is None]
        self._timer.closed(completed=not self._num_open, losses=[one.num_parts_lost for one in open_ones])
        self._generator.ended()

    async def _submit(self) -> None:
        request = self._request
        info = request.model.info
        sampling = request.sampling.resolve(info.default_sampling)
        stops = StopStrings(request.stop_strings) if request.stop_strings else None
        ends = frozenset[int]() if request.includes_stop else request.stop.end_token_ids(info.eos_token_ids)
        deadline = None if request.timeout is None else asyncio.get_running_loop().time() + request.timeout
        num_at_turn = 0
        for prompt, max_tokens in zip(request.prompts, request.max_tokens, strict=True):
            if len(self._outputs) >= num_at_turn + _SUBMITTED_AT_A_TIME:
                # Submitting a thousand sequences takes a tenth of a second. Let other tasks run in between.
                await asyncio.sleep(0)
                num_at_turn = len(self._outputs)
            await self._generator.prompt_log.write(request.request_id, request.model, prompt)
            submission = Submission(
                request_id=request.request_id,
                model=info,
                prompt_token_ids=prompt,
                work=Generate(sampling, replace(request.stop, max_tokens=max(1, max_tokens)), request.constraints),
                n=request.n,
                deadline=deadline,
                traceparent=request.traceparent,
                mailbox=self._mailbox,
                cache_salt=request.cache_salt,
                priority=request.priority,
                tenant=request.tenant,
                is_pinned=request.model.is_pinned,
                affinity=request.affinity or prompt_key(info.name, request.cache_salt, ids_to_bytes(prompt)),
            )
            detokenizer = request.model.tokenizer.vocabulary.detokenizers(
                prompt, request.skip_special_tokens, request.visible_token_ids
            )
            for sequence in submission.sequences:
                self._indices[sequence] = len(self._outputs)
                matcher = None if stops is None else StopMatcher(stops, request.includes_stop)
                self._outputs.append(TextOutput(detokenizer(), matcher, ends, request.stop.min_tokens))
                self._num_taken.append(0)
                self._finish_reasons.append(None)
                self._num_parts_lost.append(0)
            self._submissions[submission] = submission.sequences
            self._placement.submit(submission)

    def _go_on(self) -> None:
        """Resumes the paused sequences. Called when the client has read all output so far."""
        for submission in self._submissions:
            if submission.paused:
                self._placement.go_on(submission)

    def _rounds(self, news: list[SubmittedSequence]) -> Iterator[list[ChoiceDelta]]:
        """Yields the deltas of the sequences in `news` in rounds. An API encodes one round in a few milliseconds.
        Usually there is only one."""
        deltas: list[ChoiceDelta] = []
        num_tokens = num_logprobs = num_chars = 0
        for sequence in news:
            delta = self._advance(sequence)
            if delta is None:
                continue
            for short in in_short_deltas(delta):
                deltas.append(short)
                num_tokens += len(short.token_ids)
                num_chars += len(short.text)
                num_logprobs += len(short.logprobs) + len(short.prompt_logprobs or ())
                is_full = num_tokens >= _ROUND_TOKENS or num_logprobs >= _ROUND_LOGPROBS
                if is_full or num_chars >= MAX_CHARS_OF_DELTA:
                    yield deltas
                    deltas, num_tokens, num_logprobs, num_chars = [], 0, 0, 0
        if deltas:
            yield deltas

    def _with_prompts(self, news: list[SubmittedSequence]) -> list[SubmittedSequence]:
        """Returns the sequences that can send deltas: all sequences of each prompt that has a sequence in `news`. Skips
        a prompt while some of its requested log probabilities are missing: they arrive with its first sequence, and no
        sequence of the prompt may send deltas before they are complete."""
        found: dict[SubmittedSequence, None] = {}
        for sequence in news:
            if not sequence.submission.lacks_prompt_logprobs:
                found |= dict.fromkeys(self._submissions[sequence.submission])
        return list(found)

    def _advance(self, sequence: SubmittedSequence) -> ChoiceDelta | None:
        index = self._indices[sequence]
        if self._finish_reasons[index] is not None:
            return None
        output, num_taken = self._outputs[index], self._num_taken[index]
        token_ids = sequence.output_token_ids[num_taken:]
        logprobs: Sequence[TokenLogprob] = ()
        if sequence.logprobs:
            logprobs, sequence.logprobs = sequence.logprobs, TokenLogprobs()
        reason = sequence.finish_reason
        if not self._request.max_tokens[index // self._request.n]:
            # The client asked for no tokens, so the one token that was generated is dropped.
            token_ids, logprobs, num_taken = [], (), 0
            reason = reason and FinishReason.LENGTH
        text, num_counted = output.push(token_ids)
        if token_ids:
            self._num_taken[index] = num_taken + len(token_ids)
            is_recovered = sequence.num_parts_lost != self._num_parts_lost[index]
            self._num_parts_lost[index] = sequence.num_parts_lost
            now = time.monotonic()
            if is_recovered:
                self._recovered_at.append(now)
            prompt = sequence.submission.prompt_token_ids
            self._timer.tokens(index, num_counted, now, prompt, is_recovered=is_recovered)
        if output.stopped:
            reason = FinishReason.STOP
            token_ids, logprobs = token_ids[:num_counted], logprobs[:num_counted]
            self._placement.end(sequence)
        elif reason is not None:
            text += output.finish()
        if reason is not None:
            self._finish_reasons[index] = reason
            self._num_open -= 1
            prompt_index = index // self._request.n
            least = self._cached_tokens[prompt_index]
            found = sequence.num_cached_tokens
            self._cached_tokens[prompt_index] = found if least is None else min(least, found)
            most = self._request.max_tokens[prompt_index]
            end = ChoiceEnd.of(sequence, reason.name.lower(), output.num_tokens, most)
            self._timer.ended(index, end)
        elif not token_ids:
            return None
        delta = ChoiceDelta(index, text, token_ids, logprobs, reason)
        if reason is FinishReason.STOP:
            delta.stop_reason = output.stop_string or self._stop_token(token_ids)
        if self._request.continuous_usage:
            delta.usage = self.usage
        if num_taken == 0 and sequence.submission.work.wants_prompt_logprobs:
            delta.prompt_logprobs = sequence.submission.prompt_logprobs
        return delta

    def _stop_token(self, token_ids: list[int]) -> int | None:
        """Returns the last token if it is one of the request's stop tokens, and None otherwise."""
        last = token_ids[-1] if token_ids else None
        return last if last in self._request.stop.stop_token_ids else None
