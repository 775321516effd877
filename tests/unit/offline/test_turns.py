"""No more sequences under way than a stack takes well, and no turn lost."""

from __future__ import annotations

import asyncio
import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.offline.engine import Turns
from tests.fakes.waiting import HANG_S


@settings(deadline=None)
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3), st.booleans()), max_size=12))
def test_any_requests_have_their_turns(count: int, requests: list[tuple[int, int, bool]]) -> None:
    """Each: how many sequences, how long, and whether it is cancelled on the way."""

    async def run() -> None:
        turns = Turns(count)
        under_way = num_done = 0
        started: list[int] = []

        async def work(index: int, wanted: int, steps: int) -> None:
            nonlocal under_way, num_done
            async with turns.take(wanted):
                started.append(index)
                under_way += min(wanted, count)
                assert under_way <= count
                try:
                    for _ in range(steps):
                        await asyncio.sleep(0)
                finally:
                    under_way -= min(wanted, count)
            num_done += 1

        tasks = [asyncio.create_task(work(index, *request[:2])) for index, request in enumerate(requests)]
        await asyncio.sleep(0)
        cancelled = {index for index, request in enumerate(requests) if request[2] and tasks[index].cancel()}
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert num_done == len(requests) - len(cancelled)
        assert started == sorted(started)
        async with asyncio.timeout(HANG_S), turns.take(count):
            pass

    asyncio.run(run())
