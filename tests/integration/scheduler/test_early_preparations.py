"""A worker hears what it has to prepare as soon as somebody needs it, whatever steps it is at."""

from __future__ import annotations

from pathlib import Path

from quire.worker.v1 import worker_pb2
from services.scheduler.config import SchedulerConfig
from services.worker.service.owner_messages import Stream
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.waiting import until
from tests.integration.scheduler.driver import running


class BusyWorker(FakeWorker):
    """Its first step never ends. It reads on meanwhile, as a worker does."""

    async def serve(self, stream: Stream) -> None:
        await stream.read()
        await stream.write(worker_pb2.RunResponse(hello=self.hello(self.make_model(), 1)))
        while (request := await stream.read()) is not None:
            self.steps += request.HasField("plan")
            if request.HasField("prepare"):
                self.grammars.append(request.prepare.grammar)


async def test_a_grammar_overtakes_the_plans_that_may_not_leave_yet(tmp_path: Path) -> None:
    worker = BusyWorker()
    async with running(tmp_path, worker, config=SchedulerConfig(run_ahead=1)) as stack:
        router = await stack.router()
        await router.submit(1, [1, 2], 5)
        await until(lambda: worker.steps == 1)
        await router.submit(2, [2, 2], 5, grammar="good")
        await until(lambda: worker.grammars == ["good"])
        assert worker.steps == 1
