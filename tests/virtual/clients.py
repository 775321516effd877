"""Clients of the simulated fleet. Each knows the only right answer to its request, and checks every token."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from services.router.dispatch import (
    Deliveries,
    FinishReason,
    Generate,
    Mailbox,
    Placement,
    Submission,
    SubmittedSequence,
)
from services.router.errors import ApiError, ErrorKind
from services.router.main import LAST_WORDS_S
from services.router.model import ModelInfo
from services.router.parameters import SamplingParams, StopConditions
from shared.placement import prompt_key
from tests.fakes.fake_model import EOS_TOKEN_ID, VOCAB_SIZE, expected_output
from tests.virtual.loop import Violation, World
from tests.virtual.parts import MAX_MODEL_LEN, POISON_MARK, RouterPart

MODEL = ModelInfo(
    "fake", (), MAX_MODEL_LEN, VOCAB_SIZE, frozenset([EOS_TOKEN_ID]), SamplingParams(), "", 0, "Fake", "none"
)
# How long a client waits before it tries again on another router.
RETRY_S = 0.05
# Seconds within which late requests come.
LATE_S = 2.5
# Part of the error of a request that is blamed for the exits of workers.
TWO_EXITS = "exited twice"
# A request fails if six schedulers in a row were lost, and is submitted again after each but the last. Some of them may
# have been lost before the submission was written.
LEAST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Request:
    name: str
    arrives_at: float
    prompt: tuple[int, ...]
    max_tokens: int
    n: int
    # The client pauses for this long after each delivery.
    reads_every: float = 0.0
    # Seconds after which the client leaves.
    leaves_after: float | None = None
    # A stop string ends each choice after this many of its tokens.
    stops_after: int | None = None
    # Seconds until the request's deadline.
    timeout: float | None = None
    # Whether it ends every worker that computes it.
    is_poisonous: bool = False


def draw_requests(rng: random.Random, number: int, start: float, num_late: int) -> list[Request]:
    """All requests arrive within a second, but for `num_late` that come until LATE_S, so that few faults meet an idle
    fleet."""
    shared = [tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.choice((4, 8, 13)))) for _ in range(3)]
    requests = []
    for index in range(number):
        own = tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, 12)))
        kind = rng.random()
        max_tokens = rng.choice((1, 3, 8, 16, 24, 32))
        requests.append(
            Request(
                name=f"q{index}",
                arrives_at=start + rng.uniform(0.0, LATE_S if index >= number - num_late else 1.0),
                prompt=(*(rng.choice(shared) if rng.random() < 0.5 else ()), *own),
                # A client that leaves early leaves much work behind, if nobody is told.
                max_tokens=160 if kind < 0.16 else max_tokens,
                n=rng.choice((1, 1, 1, 2, 3)),
                reads_every=rng.choice((0.0, 0.0, 0.0, 0.05, 1.2)),
                leaves_after=rng.choice((0.0, 0.001, rng.uniform(0.0, 1.5))) if kind < 0.08 else None,
                stops_after=rng.randint(1, 8) if 0.08 <= kind < 0.16 else None,
                timeout=rng.uniform(0.2, 4.0) if 0.16 <= kind < 0.22 else None,
            )
        )
    return requests


def poison(requests: Sequence[Request], rng: random.Random, number: int) -> list[Request]:
    """Makes `number` of the requests poisonous, among those that their clients do not end."""
    patient = [
        index
        for index, request in enumerate(requests)
        if (request.leaves_after, request.stops_after, request.timeout) == (None, None, None)
    ]
    chosen = set(rng.sample(patient, min(number, len(patient))))
    return [_poisonous(request, rng) if index in chosen else request for index, request in enumerate(requests)]


def _poisonous(request: Request, rng: random.Random) -> Request:
    while True:
        num_harmless = rng.randrange(request.max_tokens)
        prompt = (POISON_MARK, num_harmless, *request.prompt)
        outputs = [expected_output(prompt, request.max_tokens, choice_index=choice) for choice in range(request.n)]
        if all(num_harmless < len(output) for output in outputs):
            return replace(request, prompt=prompt, is_poisonous=True)


@dataclass(eq=False)
class Client:
    """Sends one request until it is answered. If its router dies or stops before the answer is complete, it sends the
    request again, as Envoy and clients do."""

    world: World
    request: Request
    is_done: bool = False
    error: ApiError | None = None
    num_tries: int = 0
    choices: list[list[int]] = field(default_factory=list)
    _router: RouterPart | None = None

    @property
    def is_blamed(self) -> bool:
        """Whether the request failed because workers exited while they worked on it."""
        return self.error is not None and TWO_EXITS in self.error.message

    def send(self, routers: Sequence[RouterPart]) -> None:
        """Starts the request on a router that takes requests. Tries later if none does."""
        serving = [router for router in routers if router.is_serving]
        if not serving:
            self.world.call_later(RETRY_S, lambda: self.send(routers))
            return
        router = self.world.random.choice(serving)
        self._router = router
        self.num_tries += 1
        self.choices = [[] for _ in range(self.request.n)]
        number = self.num_tries
        router.host.loop.call_soon(lambda: router.serve(self._run(router, routers, number)))

    def router_died(self, router: RouterPart, routers: Sequence[RouterPart]) -> None:
        if not self.is_done and self._router is router:
            self.world.say(f"{self.request.name} lost its router")
            self._send_again(routers)

    def _send_again(self, routers: Sequence[RouterPart]) -> None:
        self._router = None  # until it has another one, or its death would send the request a second time
        self.send(routers)

    async def _run(self, router: RouterPart, routers: Sequence[RouterPart], number: int) -> None:
        request, loop, server = self.request, router.host.loop, router.server
        if not server.is_serving:
            self._send_again(routers)
            return
        mailbox = Mailbox(Deliveries(clock=loop.time))
        deadline = None if request.timeout is None else loop.time() + request.timeout
        prompt = list(request.prompt)
        submission = Submission(
            request_id=request.name,
            model=MODEL,
            prompt_token_ids=prompt,
            work=Generate(SamplingParams(temperature=0.0), StopConditions(request.max_tokens)),
            n=request.n,
            deadline=deadline,
            traceparent="",
            mailbox=mailbox,
            affinity=prompt_key("fake", "", b"".join(token.to_bytes(4, "little") for token in prompt)),
        )
        placement = router.placement
        placement.submit(submission)
        try:
            async with asyncio.timeout(request.leaves_after):
                await self._read(placement, submission, number)
        except TimeoutError:
            self.world.say(f"{request.name} leaves")
        except ApiError as error:
            if error.kind is ErrorKind.UNAVAILABLE and loop.time() >= server.tells_at:
                self.world.say(f"{request.name} is told that its router stops")
                self._send_again(routers)
                return
            self._fail(error, deadline, router, submission)
        except asyncio.CancelledError:
            if loop.time() >= server.cuts_at and not self.world.is_over:
                self._is_cut()
                self._send_again(routers)
            raise
        finally:
            placement.close(submission)
        self.is_done = True

    def _is_cut(self) -> None:
        """The router ended the request without a word. It may if the client did not listen."""
        self.world.say(f"{self.request.name} is cut by its router")
        if self.request.reads_every <= LAST_WORDS_S:
            self.world.problems.append(f"{self.request.name} was not told that its router stops")

    async def _read(self, placement: Placement, submission: Submission, number: int) -> None:
        request = self.request
        is_open = [True] * request.n
        while any(is_open):
            if not submission.mailbox.has_news and submission.paused:
                placement.go_on(submission)
            for sequence in await submission.mailbox.take():
                index = sequence.choice_index
                if number == self.num_tries and is_open[index]:
                    self._receive(sequence)
                received = len(self.choices[index])
                if is_open[index] and request.stops_after is not None and received >= request.stops_after:
                    placement.end(sequence)
                    is_open[index] = False
                if sequence.finish_reason is not None:
                    if is_open[index]:
                        self._check_end(sequence)
                    is_open[index] = False
            if request.reads_every:
                await asyncio.sleep(request.reads_every)

    def _receive(self, sequence: SubmittedSequence) -> None:
        choice = sequence.choice_index
        received = self.choices[choice]
        new = sequence.output_token_ids[len(received) :]
        expected = self._expected(choice)
        received.extend(new)
        if expected[: len(received)] != received:
            raise Violation(f"{self.request.name}: choice {choice} got {received}, expected {expected}")

    def _check_end(self, sequence: SubmittedSequence) -> None:
        choice = sequence.choice_index
        received, expected = self.choices[choice], self._expected(choice)
        if received != expected:
            raise Violation(
                f"{self.request.name}: choice {choice} ended after {len(received)} of {len(expected)} tokens"
            )
        is_stop = expected[-1] == EOS_TOKEN_ID
        if sequence.finish_reason is not (FinishReason.STOP if is_stop else FinishReason.LENGTH):
            raise Violation(f"{self.request.name}: choice {choice} ended with {sequence.finish_reason}")

    def _fail(self, error: ApiError, deadline: float | None, router: RouterPart, submission: Submission) -> None:
        self.error = error
        self.world.say(f"{self.request.name} fails: {error.kind.name}: {error}")
        if error.kind is ErrorKind.TIMEOUT and deadline is not None and self.world.now >= deadline - 0.001:
            return
        if error.kind is ErrorKind.INTERNAL and TWO_EXITS in error.message:
            return  # checked against the exits of workers at the end
        if error.kind is ErrorKind.INTERNAL and "in a row were lost" in error.message:
            tries = (_num_tries_without_progress(router, sequence) for sequence in submission.sequences)
            if (number := max(tries)) >= LEAST_TRIES:
                return
            raise Violation(f"{self.request.name} was given up after {number} tries without a new token")
        raise Violation(f"{self.request.name} failed: {error.kind.name}: {error}")

    def _expected(self, choice: int) -> list[int]:
        return expected_output(self.request.prompt, self.request.max_tokens, choice_index=choice)


def _num_tries_without_progress(router: RouterPart, sequence: SubmittedSequence) -> int:
    """Returns how often the router has submitted a choice with the tokens that it has now."""
    submissions = router.submissions[sequence.submission.request_id, sequence.choice_index]
    return submissions.count(len(sequence.output_token_ids))
