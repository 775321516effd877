"""The processes of the simulated fleet: the real code of router and scheduler, and the fake worker."""

from __future__ import annotations

import asyncio
import math
import random
from array import array
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quire.worker.v1 import worker_pb2
from services.router import main as router_main
from services.router.dispatch import Placement
from services.router.dispatch.scheduler_connection import CONNECT
from services.scheduler.config import SchedulerConfig
from services.scheduler.main import drain as drain_scheduler
from services.scheduler.servicer import SchedulerServicer
from services.scheduler.worker_groups import Fleet
from services.scheduler.worker_groups.claimer import Claimer
from services.scheduler.worker_groups.worker_link import RUN
from services.worker.service.owner_messages import Stream as OwnerStream
from tests.fakes.counting_model import CountingModel
from tests.fakes.fake_model import FakeModel
from tests.fakes.fake_worker import FakeWorker, Script
from tests.virtual.discovery import View
from tests.virtual.exits import Exits, Prompt, prompt_of
from tests.virtual.loop import World
from tests.virtual.network import Host, Network, Stream, Watch

SCHEDULER_WAIT_S = 60.0
# What a router that runs does in time, it does within this time.
_SOON_S = 0.01
MAX_MODEL_LEN = 192
# First token of a poisonous prompt. The second one is the number of tokens that the worker generates before it ends.
POISON_MARK = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """What a seed chooses for the whole fleet."""

    num_routers: int
    num_schedulers: int
    num_workers: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    step_seconds: float
    run_ahead: int | None
    step_timeout: float
    num_host_blocks: int


@dataclass(eq=False)
class Part:
    """A process that can be started, killed and started again."""

    name: str
    world: World
    network: Network
    setting: Setting
    num_starts: int = 0
    host: Host = field(init=False)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.name

    @property
    def is_alive(self) -> bool:
        return not self.host.loop.is_dead

    def start(self) -> None:
        """Starts a new process at the same address."""
        self.num_starts += 1
        loop = self.world.new_loop(f"{self.name}.{self.num_starts}")
        self.host = Host(loop.name, loop, self.address)
        self.tasks = []
        self.world.say(f"{loop.name} starts")
        loop.call_soon(self._enter, self.host)

    def _enter(self, host: Host) -> None:
        if self.host is host:  # a process that was replaced before it began does nothing
            self._begin()
            host.has_begun = True

    def kill(self, longest: float) -> None:
        """Ends the process. Its peers learn of it within `longest` seconds."""
        self.world.say(f"{self.host.name} is killed")
        self.host.loop.kill()
        self.network.gone(self.host, longest)

    def stop(self, seconds: float, on_end: Callable[[], None]) -> None:
        """Tells the process to end, as SIGTERM does. It first hands over its work, for `seconds` at most."""
        self.world.say(f"{self.host.name} is told to end within {seconds:.3f} s")
        host = self.host
        draining = self._drain(seconds)  # of this process, even if another takes its place before it hears of it

        async def end() -> None:
            await draining
            self.world.say(f"{host.name} ends")
            host.loop.kill()
            self.network.gone(host, 0.001)
            on_end()

        host.loop.call_soon(lambda: self.spawn(end(), host))

    def _drain(self, seconds: float) -> Coroutine[Any, Any, bool]:
        """Returns what ends the work of the process that runs now. It gives whether all work was handed over."""
        raise NotImplementedError

    def spawn(self, work: Coroutine[Any, Any, Any], host: Host | None = None) -> asyncio.Task[Any]:
        """`host`: the process that does the work; None for the one that runs now."""
        task = (host or self.host).loop.create_task(work)
        self.tasks.append(task)
        task.add_done_callback(self._ended)
        return task

    def _begin(self) -> None:
        raise NotImplementedError

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """A task that ends by an error is a bug: the process would end."""
        if not task.cancelled() and (error := task.exception()) is not None and not self.world.is_over:
            self.world.problems.append(f"{self.name} ended: {error!r}")


class _Worker(FakeWorker):
    """Its process ends when it should generate a certain token of a poisonous sequence."""

    def on_poison(self, end: Callable[[Prompt], None]) -> None:
        """`end` ends the process. It is given the prompt that is the cause."""
        self._end = end
        # For each poisonous sequence, by epoch and wire id: its length at which it ends the process, and its prompt.
        self._deadly: dict[tuple[int, int], tuple[int, Prompt]] = {}

    async def _step(
        self, model: FakeModel | CountingModel, plan: worker_pb2.StepPlan, stream: OwnerStream
    ) -> worker_pb2.StepResult:
        for new in plan.new_sequences:
            prompt = prompt_of(new)
            if prompt[0] == POISON_MARK:
                self._deadly[plan.epoch, new.wire_id] = len(prompt) + prompt[1], prompt
        rows = plan.rows
        columns = (
            array("I", column) for column in (rows.wire_ids, rows.num_computed_tokens, rows.num_scheduled_tokens)
        )
        for wire_id, num_computed, num_scheduled in zip(*columns, strict=True):
            length, prompt = self._deadly.get((plan.epoch, wire_id), (math.inf, ()))
            if num_computed + num_scheduled >= length:
                self._end(prompt)
                await asyncio.get_running_loop().create_future()  # this process does nothing more
        return await super()._step(model, plan, stream)


class WorkerPart(Part):
    worker: _Worker
    # Ends a process because of a poisonous prompt.
    end_poisoned: Callable[[Host, Prompt], None]

    def _begin(self) -> None:
        setting = self.setting
        self.worker = _Worker(
            make_model=self._model,
            script=Script(step_seconds=setting.step_seconds),
            max_model_len=MAX_MODEL_LEN,
            boot_id=1000 * self.num_starts,
        )
        self.worker.on_poison(partial(self.end_poisoned, self.host))
        self.models: list[FakeModel] = []
        self.host.handlers[RUN.path] = self.worker.serve
        self.network.listen(self.host)

    def _drain(self, seconds: float) -> Coroutine[Any, Any, bool]:
        return _drain_worker(self.worker, seconds)

    def _model(self) -> FakeModel:
        setting = self.setting
        model = FakeModel(
            num_blocks=setting.num_blocks,
            max_num_seqs=setting.max_num_seqs,
            max_num_batched_tokens=setting.max_num_batched_tokens,
            num_host_blocks=setting.num_host_blocks,
        )
        self.models.append(model)
        return model


async def _drain_worker(worker: FakeWorker, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await worker.drain()
    except TimeoutError:
        return False
    return True


class SchedulerPart(Part):
    view: View  # of workers
    exits: Exits
    fleet: Fleet
    servicer: SchedulerServicer
    _claiming: asyncio.Task[None]

    def _begin(self) -> None:
        config = SchedulerConfig(
            worker=self.view.addresses, run_ahead=self.setting.run_ahead, step_timeout=self.setting.step_timeout
        )
        host = self.host
        self.fleet = Fleet(host.name, config)
        claimer = Claimer(
            self.fleet,
            self.view.open(),
            connect=lambda address: self.network.channel(host, address),
            jitter=random.Random(self.world.random.random()),
        )
        self.servicer = SchedulerServicer(self.fleet)
        host.handlers[CONNECT.path] = self.servicer.connect
        host.watch = self.exits
        self._claiming = self.spawn(claimer.run())
        self.spawn(self.servicer.tick_forever())
        self.network.listen(host)

    @property
    def peers_in_use(self) -> set[str]:
        """The addresses of the workers that the process has claimed."""
        return {group.address for group in self.fleet.groups if group.is_claimed} if self.host.has_begun else set()

    def _drain(self, seconds: float) -> Coroutine[Any, Any, bool]:
        return _drain_scheduler(self.servicer, self._claiming, _Server(self.network, self.host), seconds)


async def _drain_scheduler(
    servicer: SchedulerServicer, claiming: asyncio.Task[None], server: _Server, seconds: float
) -> bool:
    await drain_scheduler(servicer, server, seconds)  # type: ignore[arg-type]
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    return servicer.is_idle


class _Server:
    """What a drain needs of shared.grpc_server.GrpcServer."""

    def __init__(self, network: Network, host: Host) -> None:
        self._network = network
        self._host = host

    async def set_serving(self, serving: bool, *, stands_by: bool = False) -> None:
        pass

    async def stop(self, grace: float) -> None:
        self._network.refuse_calls(self._host)
        await asyncio.sleep(grace)
        await asyncio.gather(*self._network.end_calls(self._host), return_exceptions=True)


class _RequestServer:
    """What a drain needs of a router's server, and its requests in progress."""

    def __init__(self) -> None:
        # What the health service says. Envoy and clients use another router if it is false.
        self.is_serving = True
        # A set would be in another order in each run.
        self.requests: list[asyncio.Task[Any]] = []
        # When requests may be told that the router stops, and when they may be cut.
        self.tells_at = self.cuts_at = math.inf

    async def stop(self, grace: float) -> None:
        self.is_serving = False
        self.cuts_at = min(self.cuts_at, asyncio.get_running_loop().time() + grace)
        if self.requests:
            await asyncio.wait(self.requests, timeout=None if grace == math.inf else grace)
        for task in self.requests:
            task.cancel()
        await asyncio.gather(*self.requests, return_exceptions=True)


class RouterPart(Part, Watch):
    view: View  # of schedulers
    placement: Placement
    server: _RequestServer
    # How many tokens a choice had at each submission to a scheduler, by request and choice.
    submissions: defaultdict[tuple[str, int], list[int]]

    @property
    def address(self) -> str:
        return ""

    def _begin(self) -> None:
        host = self.host
        self.submissions = defaultdict(list)
        self.server = _RequestServer()
        self.placement = Placement(
            self.view.open(),
            router_id=host.name,
            threads=None,  # type: ignore[arg-type] # only to load tokenizers
            scheduler_wait=SCHEDULER_WAIT_S,
            scheduler_silence=2.0,
            connect=lambda address: self.network.channel(host, address),
            jitter=random.Random(self.world.random.random()),
        )
        host.watch = self
        # The fake worker has no tokenizer. Requests come in token ids.
        self.placement.models.add_tokenizer("", None)  # type: ignore[arg-type]
        self.placement.start()

    @property
    def peers_in_use(self) -> set[str]:
        """The addresses of the schedulers that have greeted the process."""
        if not self.host.has_begun:
            return set()
        return {connection.address for connection in self.placement.connections if connection.is_ready}

    @property
    def is_serving(self) -> bool:
        return self.is_alive and hasattr(self, "server") and self.server.is_serving

    def serve(self, request: Coroutine[Any, Any, None]) -> None:
        """Runs a request in the process that runs now."""
        task = self.spawn(request)
        self.server.requests.append(task)
        task.add_done_callback(self.server.requests.remove)

    def _drain(self, seconds: float) -> Coroutine[Any, Any, bool]:
        return self._end_requests(self.host, self.placement, self.server, seconds)

    async def _end_requests(self, host: Host, placement: Placement, server: _RequestServer, seconds: float) -> bool:
        server.tells_at = host.loop.time() + seconds

        def check() -> None:
            if server.requests and server.cuts_at == math.inf:
                self.world.problems.append(f"{host.name} waits for its requests longer than it was told to")

        # If the router was paused meanwhile, it first does what was due before.
        host.loop.call_at(server.tells_at + _SOON_S, lambda: host.loop.call_later(_SOON_S, check))
        await router_main.drain(placement, server, seconds)  # type: ignore[arg-type]
        await placement.stop()
        streams = [stream for stream in self.network.streams if stream.client is host and stream.is_whole]
        if streams or placement.num_parked:
            self.world.problems.append(f"{host.name} ends with {len(streams)} streams, {placement.num_parked} parked")
        return True

    def written(self, stream: Stream, message: Any) -> None:
        """Checks that the router knows every sequence that it submits. The scheduler would compute any other for
        nobody."""
        if not message.HasField("submit"):
            return
        submit = message.submit
        for choice in submit.choices:
            num_tokens = len(choice.output_token_ids) // 4  # u32[]
            self.submissions[submit.request_id, choice.choice_index].append(num_tokens)
        (connection,) = (each for each in self.placement.connections if each.address == stream.address)
        known = {sequence.sequence_id for sequence in connection.sequences} | {*connection._aborts}
        if unknown := {choice.sequence_id for choice in submit.choices} - known:
            self.world.problems.append(
                f"{self.host.name} asks {stream.address} for sequences that it has forgotten: {unknown}"
            )
