"""Workers and routers that go while a grammar is being prepared: its requests are answered all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fakes.fake_model import expected_output
from tests.fakes.fake_worker import FakeWorker, Script
from tests.integration.scheduler.driver import running


async def test_a_worker_that_dies_while_it_prepares_is_asked_again(tmp_path: Path) -> None:
    """And what two sequences need is prepared once. It dies once: a second exit with nothing beside fails them."""
    worker = FakeWorker(script=Script(num_deaths_preparing=1))
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        await router.submit(1, [1, 2], 5, grammar="good")
        await router.submit(2, [2, 2], 5, grammar="good")
        await router.submit(3, [3, 2], 5)
        await router.read_until_finished(1, 2, 3)
        assert worker.grammars == ["good"] * 2
        for sequence_id in (1, 2, 3):
            assert router.outputs[sequence_id] == expected_output([sequence_id, 2], 5)


async def test_a_grammar_that_workers_die_of_alone_fails_and_nothing_beside_it_does(tmp_path: Path) -> None:
    worker = FakeWorker(script=Script(deadly_grammar="deadly"))
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        await router.submit(1, [1, 2], 20)
        await router.submit(2, [2, 2], 5, grammar="deadly")
        await router.submit(3, [3, 2], 5, grammar="good")
        await router.submit(4, [4, 2], 20)
        await router.read_until_finished(1, 2, 3, 4)
        assert router.finished[2].error.code == 13
        assert "exited twice" in router.finished[2].error.message
        # Twice beside others, if those had begun, and twice alone.
        assert 2 <= worker.grammars.count("deadly") <= 4
        for sequence_id, num_tokens in ((1, 20), (3, 5), (4, 20)):
            assert router.outputs[sequence_id] == expected_output([sequence_id, 2], num_tokens)


async def test_another_group_prepares_what_the_lost_one_was_at(tmp_path: Path) -> None:
    dying, other = FakeWorker(script=Script(num_deaths_preparing=1)), FakeWorker()
    async with running(tmp_path, dying, other) as stack:
        for group in stack.servicer._fleet.groups:
            await group.ready.wait()
        router = await stack.router()
        await router.submit(1, [1, 2], 12, grammar="good")
        await router.read_until_finished(1)
        assert (dying.grammars, other.grammars) == (["good"], ["good"])
        assert router.outputs[1] == expected_output([1, 2], 12)


async def test_a_resubmission_waits_for_the_grammar_that_the_attempt_before_it_asked_for(tmp_path: Path) -> None:
    """The router came back over a new stream while the worker prepares: it is not asked twice."""
    gate = asyncio.Event()
    worker = FakeWorker(script=Script(preparation_gate=gate))
    async with running(tmp_path, worker) as stack:
        first = await stack.router()
        await first.submit(1, [1, 2], 9, grammar="good")
        await stack.stats_when(lambda stats: bool(worker.grammars) and stats.load.num_waiting == 1)
        first.close()
        await stack.stats_when(lambda stats: stats.load.num_waiting == 0)
        second, whole = await stack.router(), expected_output([1, 2], 9)
        await second.submit(7, [1, 2], 9, received=whole[:4], attempt=1, grammar="good")
        await stack.stats_when(lambda stats: stats.load.num_waiting == 1)
        gate.set()
        await second.read_until_finished(7)
        assert second.outputs[7] == whole
        assert worker.grammars == ["good"]


async def test_another_scheduler_asks_the_worker_anew_for_what_the_lost_one_waited_for(tmp_path: Path) -> None:
    gate = asyncio.Event()
    worker = FakeWorker(script=Script(preparation_gate=gate))
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        await router.submit(1, [1, 2], 9, grammar="good")
        await stack.stats_when(lambda _: worker.grammars == ["good"])
    # On sockets of its own: gRPC may keep a connection to those that have just closed.
    second = tmp_path / "second"
    second.mkdir()
    async with running(second, worker) as stack:
        router = await stack.router()
        await router.submit(1, [1, 2], 9, attempt=1, grammar="good")
        await stack.stats_when(lambda _: worker.grammars == ["good", "good"])
        gate.set()
        await router.read_until_finished(1)
        assert router.outputs[1] == expected_output([1, 2], 9)
