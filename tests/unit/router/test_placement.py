"""The placement by itself: what it remembers, and what becomes of requests that wait."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from quire.inference.v1 import model_pb2
from services.router.dispatch.converters import submits_to_proto
from services.router.dispatch.deliveries import Deliveries
from services.router.dispatch.placement import Placement
from services.router.dispatch.refusals import Refusals
from services.router.dispatch.scheduler_connection import SchedulerConnection
from services.router.dispatch.submission import Mailbox, Submission
from services.router.dispatch.work import Generate
from services.router.errors import ApiError, ErrorKind, overloaded, unavailable
from services.router.load import SchedulerLoad
from services.router.model import ModelInfo
from services.router.parameters.sampling import SamplingParams, StopConditions
from services.router.text.threads import TextThreads
from shared.discovery import StaticSource
from tests.fakes.waiting import until

TOKENIZER = (Path(__file__).parents[3] / "quire" / "models" / "quire-chat" / "tokenizer.json").read_bytes()


def model_info(name: str, sha256: str = "") -> ModelInfo:
    return ModelInfo(name, (), 128, 1000, frozenset(), SamplingParams(), sha256, 0, "Fake", "none")


def submission(model: ModelInfo, n: int) -> Submission:
    return Submission(
        request_id="r", model=model, prompt_token_ids=[1, 2], work=Generate(SamplingParams(), StopConditions(5)), n=n,
        deadline=None, traceparent="", mailbox=Mailbox(Deliveries()),
    )  # fmt: skip


@pytest_asyncio.fixture
async def placement() -> AsyncIterator[Placement]:
    """With one scheduler, which does not exist."""
    threads = TextThreads(1)
    schedulers = StaticSource(["unix:/nowhere"])
    placement = Placement(schedulers, router_id="r", threads=threads, scheduler_wait=60, scheduler_silence=60)
    placement.start()
    await until(lambda: len(placement.connections) == 1)
    yield placement
    await placement.stop()
    threads.close()


async def test_models_that_nobody_serves_any_more_are_forgotten(placement: Placement) -> None:
    (connection,) = placement.connections
    infos = []
    for version in range(12):
        bundle = model_pb2.TokenizerBundle(
            tokenizer_json=TOKENIZER, tokenizer_config_json=b'{"version": "%d"}' % version
        ).SerializeToString()
        infos.append(model_info("rolling", hashlib.sha256(bundle).hexdigest()))
        await placement.on_hello(connection, infos[-1], bundle)
    assert [placement.has_tokenizer(info) for info in infos] == [False] * 3 + [True] * 9
    assert [entry.model.info for entry in await placement.models.listed()] == [infos[-1]]


async def test_a_waiting_request_that_fails_takes_all_its_waiting_sequences_along(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    (connection,) = placement.connections
    request = submission(model_info("m"), n=2)
    for sequence in request.sequences:
        placement.on_refused(connection, {sequence: unavailable("no worker")})
    assert placement.num_parked == 2
    connection.info = request.model
    connection.load.report(SchedulerLoad(num_ready_groups=1), now=0.0)
    monkeypatch.setattr(SchedulerConnection, "has_room", property(lambda _: False))
    placement.on_load(connection)
    assert placement.num_parked == 0
    with pytest.raises(ApiError) as failure:
        await request.mailbox.take()
    assert failure.value.kind is ErrorKind.OVERLOADED


async def test_a_wait_is_one_wait_until_a_scheduler_has_kept_the_sequence(placement: Placement) -> None:
    (connection,) = placement.connections
    request = submission(model_info("m"), n=1)
    (sequence,) = request.sequences
    connection.info = request.model
    connection.load.report(SchedulerLoad(num_ready_groups=1, is_draining=True), now=0.0)
    placement.submit(request)
    waits_until = request.waits_until
    assert waits_until is not None

    def place_and_refuse(num_loads: int) -> None:
        connection.load.report(SchedulerLoad(num_ready_groups=1), now=0.0)
        placement.on_load(connection)
        assert sequence.connection is connection
        connection.num_loads += num_loads
        connection.load.report(SchedulerLoad(num_ready_groups=1, is_draining=True), now=0.0)
        connection.drop(sequence, abort=False)
        placement.on_refused(connection, {sequence: unavailable("no worker")})
        assert placement.num_parked == 1

    place_and_refuse(num_loads=1)
    assert request.waits_until == waits_until
    place_and_refuse(num_loads=2)
    assert request.waits_until > waits_until


async def test_refusals_hold_until_something_has_changed(placement: Placement) -> None:
    (connection,) = placement.connections
    refusals = Refusals()
    connection.load.report(SchedulerLoad(), now=0.0)
    refusals.add(connection, unavailable("no worker"))
    connection.num_loads += 1
    assert refusals.get(connection) is not None, "it still has none"
    connection.load.report(SchedulerLoad(num_ready_groups=1), now=0.0)
    assert refusals.get(connection) is None
    # A scheduler that refuses again all the same is asked ever more rarely.
    waits = []
    for _ in range(9):
        refusals.add(connection, unavailable("no worker"))
        before = connection.num_loads
        while refusals.get(connection) is not None:
            connection.num_loads += 1
        waits.append(connection.num_loads - before)
    assert waits == [2, 4, 8, 16, 32, 64, 64, 64, 64]
    for kind in (ErrorKind.INVALID_REQUEST, ErrorKind.OVERLOADED):
        refusals.add(connection, ApiError(kind, "no"))
        connection.num_loads += 1000
        assert refusals.num_holding == 1
        connection.num_hellos += 1
        assert refusals.num_holding == 0


def test_much_output_is_resubmitted_in_several_messages() -> None:
    work = submission(model_info("m"), n=128)
    for sequence in work.sequences:
        sequence.output_token_ids = [sequence.choice_index] * 100_000
    messages = list(submits_to_proto(work, work.sequences, 0.0))
    assert max(message.ByteSize() for message in messages) < 5_000_000
    choices = [choice for message in messages for choice in message.submit.choices]
    assert [choice.choice_index for choice in choices] == list(range(128))
    assert {len(choice.output_token_ids) for choice in choices} == {400_000}
    assert {message.submit.request_id for message in messages} == {"r"}
    # One that is too large for any message of that size still goes.
    work.sequences[0].output_token_ids = [1] * 2_000_000
    first, second = submits_to_proto(work, work.sequences[:2], 0.0)
    assert (len(first.submit.choices), len(second.submit.choices)) == (1, 1)


async def test_a_request_whose_client_reads_again_gets_the_last_word_of_a_router_that_stops(
    placement: Placement,
) -> None:
    request = submission(model_info("m"), n=1)
    placement.submit(request)
    request.paused = list(request.sequences)
    placement.fail_all(unavailable("The router is stopping."))
    placement.go_on(request)
    with pytest.raises(ApiError, match="stopping"):
        await request.mailbox.take()


async def test_a_paused_request_goes_on_where_it_was_refused_before_its_scheduler_was_lost(
    placement: Placement,
) -> None:
    """A full queue refuses new requests only, and this one has begun elsewhere meanwhile."""
    (connection,) = placement.connections
    request = submission(model_info("m"), n=1)
    (sequence,) = request.sequences
    connection.info = request.model
    connection.load.report(SchedulerLoad(num_ready_groups=1), now=0.0)
    request.refusals.add(connection, overloaded("full"))
    sequence.was_accepted = True
    request.paused = [sequence]
    placement.go_on(request)
    assert sequence.connection is connection


async def test_a_request_that_one_scheduler_has_kept_is_offered_to_those_that_were_full(placement: Placement) -> None:
    (connection,) = placement.connections
    request = submission(model_info("m"), n=1)
    (sequence,) = request.sequences
    connection.info = request.model
    connection.load.report(SchedulerLoad(num_ready_groups=1), now=0.0)
    placement.submit(request)
    full = SchedulerConnection("unix:/elsewhere", "r", placement, 60.0)
    request.refusals.add(full, overloaded("full"))
    connection.num_loads += 2
    connection.drop(sequence, abort=False)
    placement.on_refused(connection, {sequence: unavailable("stopping")})
    assert request.refusals.get(full) is None
    assert sequence.was_accepted
