"""A lost sequence goes on at a worker that has its prompt in host memory only, and not in the blocks of the device."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fakes.fake_model import FakeModel, expected_output
from tests.fakes.fake_worker import FakeWorker, Script
from tests.fakes.waiting import until
from tests.integration.scheduler.driver import running

PROMPT = list(range(3, 16))  # three full blocks of four tokens, and a token more
OTHERS = [[100 + index] * 29 for index in range(2)]  # each fills all blocks of the device


def worker(gate: asyncio.Semaphore | None = None) -> FakeWorker:
    return FakeWorker(
        make_model=lambda: FakeModel(num_blocks=8, max_num_batched_tokens=32, num_host_blocks=16),
        max_model_len=32,
        script=Script(gate=gate),
    )


async def test_a_lost_sequence_is_copied_back_and_not_computed_again(tmp_path: Path) -> None:
    async with running(tmp_path, worker(asyncio.Semaphore(4)), worker()) as stack:
        await until(lambda: all(group.ready.is_set() for group in stack.fleet.groups))
        router = await stack.router()
        await router.submit(1, PROMPT, 15)
        await until(lambda: stack.fleet.groups[0].num_unfinished == 1)
        # The other worker has fewer sequences, so it gets these.
        await router.submit(2, PROMPT, 1)
        await router.read_until_finished(2)
        for index, prompt in enumerate(OTHERS):
            await router.submit(10 + index, prompt, 1)
            await router.read_until_finished(10 + index)
        survivor = stack.fleet.groups[1].core
        assert survivor is not None
        assert survivor.counters.swapped_out_blocks >= 3
        assert survivor.counters.swapped_in_blocks == 0
        num_computed = survivor.counters.scheduled_tokens
        assert stack.fleet.groups[0].num_unfinished == 1

        await stack.worker_servers[0].stop(0)
        await router.read_until_finished(1)
        assert router.outputs[1] == expected_output(PROMPT, 15)
        assert survivor.counters.swapped_in_blocks == 3
        # Of 13 + 14 tokens, whatever was known of the output, all but the 12 that came from the host.
        assert survivor.counters.scheduled_tokens == num_computed + 15
