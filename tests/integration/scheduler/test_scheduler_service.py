"""The scheduler as its peers see it: a router's stream on one side, a scripted worker on the other, real gRPC
between.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from array import array
from pathlib import Path

import grpc
import pytest
from prometheus_client import generate_latest

from quire.inference.v1 import model_pb2, sampling_pb2
from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from quire.worker.v1 import worker_pb2
from services.scheduler.config import SchedulerConfig
from services.scheduler.metrics import FleetCollector, LoadCollector
from services.scheduler.servicer import SchedulerServicer
from services.scheduler.worker_groups import worker_link
from services.scheduler.worker_groups.claimer import Claimer
from services.scheduler.worker_groups.fleet import Fleet
from shared.discovery import StaticSource
from shared.grpc_server import GrpcServer
from shared.log import TextFormatter
from shared.metrics import registry_of
from tests.fakes.counting_model import CountingModel
from tests.fakes.fake_model import VOCAB_SIZE, FakeModel, expected_output
from tests.fakes.fake_worker import FakeWorker, Script, start_fake_worker
from tests.fakes.waiting import HANG_S, until
from tests.integration.scheduler.driver import Router, running


async def test_many_sequences_end_with_the_right_tokens_although_blocks_are_short(tmp_path: Path) -> None:
    worker = FakeWorker(
        make_model=lambda: FakeModel(num_blocks=20, block_size=4, max_num_seqs=8, max_num_batched_tokens=24)
    )
    worker.max_model_len = 80
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        prompts = {index: list(range(index, index + 3 + index % 30)) for index in range(40)}
        for index, prompt in prompts.items():
            await router.submit(index, prompt, 30)
        await router.read_until_finished(*prompts)
        for index, prompt in prompts.items():
            assert router.outputs[index] == expected_output(prompt, 30)
        load = (await stack.stats()).load
        assert load.num_preemptions > 0, "the pool was to be too small"
        assert load.num_used_blocks == load.num_running == load.num_waiting == 0


async def test_a_worker_that_dies_is_a_pause(tmp_path: Path) -> None:
    worker = FakeWorker(script=Script(die_at_step=7))
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        for index in range(5):
            await router.submit(index, [10 + index, 5], 40)
        await router.read_until_finished(*range(5))
        assert worker.script.die_at_step is None, "it was to die"
        for index in range(5):
            assert router.outputs[index] == expected_output([10 + index, 5], 40)


async def test_a_worker_that_answers_nothing_is_given_up(tmp_path: Path) -> None:
    worker = FakeWorker(script=Script(hang_at_step=3))
    config = SchedulerConfig(step_timeout=3600.0)
    async with running(tmp_path, worker, config=config) as stack:
        router = await stack.router()
        await router.submit(1, [3, 4], 20)
        await until(lambda: worker.script.hang_at_step is None)  # it hangs there
        start = time.monotonic()
        for quarter in range(5 * int(config.step_timeout)):  # A longer step would be a pause of the scheduler's own.
            stack.fleet.tick(start + quarter / 4)
        await router.read_until_finished(1)
        assert worker.epoch == 2
        assert router.outputs[1] == expected_output([3, 4], 20)


async def test_a_scheduler_with_nothing_to_plan_sends_its_worker_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_link, "HEARTBEAT_S", 0.02)
    worker = FakeWorker()
    async with running(tmp_path, worker) as stack:
        for _ in range(3):
            await asyncio.wait_for(worker.heartbeat.wait(), HANG_S)
            worker.heartbeat.clear()
        router = await stack.router()
        await router.submit(1, [3, 4], 20)
        await router.read_until_finished(1)
        assert router.outputs[1] == expected_output([3, 4], 20)
        assert worker.epoch == 1


async def test_a_lost_worker_that_stays_away_fails_its_sequences_in_time(tmp_path: Path) -> None:
    worker = FakeWorker(script=Script(gate=asyncio.Semaphore(4)))
    server = await start_fake_worker(worker, f"unix:{tmp_path}/away")
    fleet = Fleet("test", SchedulerConfig(worker_timeout=0.2))
    claimer = Claimer(fleet, StaticSource([f"unix:{tmp_path}/away"]))
    servicer = SchedulerServicer(fleet)
    grpc_server = GrpcServer(["quire.scheduler.v1.SchedulerService"])
    grpc_server.add(scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, servicer)
    await grpc_server.start([f"unix:{tmp_path}/s"])
    tasks = [asyncio.create_task(claimer.run()), asyncio.create_task(servicer.tick_forever())]
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel:
        router = Router(scheduler_pb2_grpc.SchedulerServiceStub(channel))
        await router.connect()
        await fleet.wait_ready()  # a worker that has not come yet is missed as much as one that is lost
        await router.submit(1, [5], 100)
        while len(router.outputs[1]) < 3:
            await router.read()
        await server.stop(0)
        await router.read_until_finished(1)
        assert router.finished[1].error.code == grpc.StatusCode.UNAVAILABLE.value[0]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await grpc_server.stop(0)


async def test_sequences_spread_over_two_worker_groups(tmp_path: Path) -> None:
    workers = [FakeWorker(), FakeWorker()]
    async with running(tmp_path, *workers) as stack:
        router = await stack.router()
        await asyncio.gather(*(group.ready.wait() for group in stack.servicer._fleet.groups))
        for index in range(12):
            await router.submit(index, [index + 1], 20)
        await router.read_until_finished(*range(12))
        assert all(worker.steps for worker in workers)
        for index in range(12):
            assert router.outputs[index] == expected_output([index + 1], 20)


async def test_a_lost_worker_s_sequences_go_on_at_another_group(tmp_path: Path) -> None:
    """And the group that is gone for good costs them no wait."""
    dying = FakeWorker(script=Script(gate=asyncio.Semaphore(2)))
    async with running(tmp_path, dying, FakeWorker()) as stack:
        groups = stack.servicer._fleet.groups
        await asyncio.gather(*(group.ready.wait() for group in groups))
        router = await stack.router()
        for index in range(6):
            await router.submit(index, [index + 1], 20)
        await stack.stats_when(lambda _: groups[0].num_unfinished > 0)
        assert groups[0].steps.link is not None
        dying.script = Script(hang_at_step=1)
        groups[0].steps.link.cancel()
        await router.read_until_finished(*range(6))
        for index in range(6):
            assert router.outputs[index] == expected_output([index + 1], 20)


async def test_a_worker_that_dies_of_a_sequence_dies_three_times(tmp_path: Path) -> None:
    """The sequence fails then, and the one beside it is answered."""
    async with running(tmp_path, FakeWorker(script=Script(deadly_token_id=99))) as stack:
        router = await stack.router()
        await router.submit(1, [98, 1], 20)
        await router.submit(2, [99, 1], 20)
        await router.read_until_finished(1, 2)
        assert router.outputs[1] == expected_output([98, 1], 20)
        assert router.finished[2].error.code == grpc.StatusCode.INTERNAL.value[0]
        assert "exited twice" in router.finished[2].error.message


async def test_a_router_that_reads_nothing_is_dropped_with_all_it_asked_for(tmp_path: Path) -> None:
    worker = FakeWorker(make_model=lambda: CountingModel(max_num_seqs=64), max_model_len=60_000)
    async with running(tmp_path, worker) as stack:
        narrow = [("grpc.http2.lookahead_bytes", 1024), ("grpc.max_receive_message_length", 1 << 25)]
        async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s", options=narrow) as channel:
            router = Router(scheduler_pb2_grpc.SchedulerServiceStub(channel))
            await router.connect()
            for index in range(64):
                await router.submit(index, [index], 50_000)
            stats = await stack.stats_when(lambda stats: stats.num_aborted == 64)
            assert stats.load.num_running == 0
            assert not stack.servicer._sessions


async def test_a_resubmission_goes_on_where_the_output_received_ends(tmp_path: Path) -> None:
    whole = expected_output([9, 9], 20)
    async with running(tmp_path, FakeWorker()) as stack:
        router = await stack.router()
        await router.submit(4, [9, 9], 20, received=whole[:6], attempt=1)
        await router.read_until_finished(4)
        assert router.outputs[4] == whole
        assert router.finished[4].attempt == 1


class RecordingModel(FakeModel):
    """Keeps the plans that it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: list[worker_pb2.StepPlan] = []

    def step(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        self.plans.append(plan)
        return super().step(plan)


async def test_an_abort_frees_the_blocks_at_once_and_the_next_plan_tells_the_worker(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)
    model = RecordingModel()
    worker = FakeWorker(make_model=lambda: model, script=Script(gate=gate))
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        await router.submit(1, [1] * 30, 60)
        gate.release()
        while not router.outputs[1]:
            await router.read()
        assert (await stack.stats()).load.num_used_blocks > 0
        await router.abort(1)
        # The gate is closed: no step of those in flight can end.
        after = await stack.stats_when(lambda stats: stats.num_aborted > 0)
        assert after.load.num_used_blocks == 0
        await router.submit(2, [2] * 30, 20)
        worker.script.gate = None
        for _ in range(after.num_steps):  # those that came to the gate while it was closed
            gate.release()
        await router.read_until_finished(2)
        assert router.outputs[2] == expected_output([2] * 30, 20)
        (wire_id,) = (new.wire_id for new in model.plans[0].new_sequences)
        next_plan = model.plans[after.num_steps]
        assert list(array("I", next_plan.released_wire_ids)) == [wire_id]


async def test_what_was_found_in_the_cache_is_told_and_a_reset_forgets_it(tmp_path: Path) -> None:
    prompt = list(range(50))
    async with running(tmp_path, FakeWorker()) as stack:
        router = await stack.router()
        for sequence_id in (1, 2, 3):
            if sequence_id == 3:
                await stack.stub.ResetPrefixCache(scheduler_pb2.ResetPrefixCacheRequest())
            await router.submit(sequence_id, prompt, 10)
            await router.read_until_finished(sequence_id)
            assert router.outputs[sequence_id] == expected_output(prompt, 10)
        # Blocks of four; the last prompt token is always computed.
        assert [router.started[sequence_id].num_cached_tokens for sequence_id in (1, 2, 3)] == [0, 48, 0]
        load = (await stack.stats()).load
        assert (load.num_prefix_cache_queries, load.num_prefix_cache_hits) == (150, 48)


async def test_the_time_in_the_queue_is_told_with_the_first_token(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)
    worker = FakeWorker(script=Script(gate=gate))
    async with running(tmp_path, worker, config=SchedulerConfig(max_num_seqs=1)) as stack:
        router = await stack.router()
        start = time.monotonic()
        await router.submit(1, [1, 2, 3], 3)
        await stack.stats_when(lambda stats: stats.load.num_running == 1)
        first_at_most = time.monotonic() - start
        await router.submit(2, [4, 5, 6], 3)
        await stack.stats_when(lambda stats: stats.load.num_waiting == 1)
        start = time.monotonic()
        await asyncio.sleep(0.05)
        second_at_least = time.monotonic() - start
        worker.script.gate = None
        for _ in range((await stack.stats()).num_steps):
            gate.release()
        await router.read_until_finished(1)
        await router.read_until_finished(2)

        assert router.started[1].queue_us <= first_at_most * 1e6
        assert router.started[2].queue_us >= second_at_least * 1e6 - 1


async def test_metrics_tell_the_tokens_per_second(tmp_path: Path) -> None:
    async with running(tmp_path, FakeWorker()) as stack:
        router = await stack.router()
        metrics = registry_of(
            LoadCollector(lambda: ("model", ""), stack.servicer.load, stack.servicer.throughput.rates)
        )
        labels = {"model_name": "model"}

        def rates() -> list[float | None]:
            names = ("vllm:avg_prompt_throughput_toks_per_s", "vllm:avg_generation_throughput_toks_per_s")
            return [metrics.get_sample_value(name, labels) for name in names]

        assert rates() == [0, 0]
        async with asyncio.timeout(HANG_S):
            for sequence_id in itertools.count(1):
                await router.submit(sequence_id, [1, 2, 3], 5)
                await router.read_until_finished(sequence_id)
                if all(rates()):  # after the second sample
                    break


async def test_priority_is_heeded_where_the_policy_says_so(tmp_path: Path) -> None:
    for policy, last in (("priority", 1), ("fcfs", 3)):
        (tmp_path / policy).mkdir()
        gate = asyncio.Semaphore(0)
        worker = FakeWorker(script=Script(gate=gate))
        config = SchedulerConfig(max_num_seqs=1, scheduling_policy=policy)
        async with running(tmp_path / policy, worker, config=config) as stack:
            router = await stack.router()
            await router.submit(0, [9], 5)
            await stack.stats_when(lambda stats: stats.load.num_running == 1)
            for sequence_id, priority in ((1, 5), (2, 0), (3, -1)):
                await router.submit(sequence_id, [sequence_id], 5, priority=priority)
            await stack.stats_when(lambda stats: stats.load.num_waiting == 3)
            worker.script.gate = None
            for _ in range(4):  # steps that came to the gate while it was closed
                gate.release()
            await router.read_until_finished(0, 1, 2, 3)
            assert list(router.finished)[-1] == last


async def test_a_router_that_is_gone_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running(tmp_path, FakeWorker(script=Script(step_seconds=0.01))) as stack:
        router = await stack.router()
        for index in range(6):
            await router.submit(index, [index + 3], 100)
        while not any(router.outputs.values()):
            await router.read()
        router.close()
        await stack.stats_when(lambda stats: stats.load.num_used_blocks == 0)


async def test_one_poisoned_sequence_fails_alone_and_the_log_says_whose_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, FakeWorker(script=Script(poison_token_id=99))) as stack:
        router = await stack.router()
        await router.submit(1, [99, 1], 20, request_id="from-the-client")
        await router.submit(2, [98, 1], 20)
        await router.read_until_finished(1, 2)
        assert router.finished[1].reason == sampling_pb2.FINISH_REASON_ERROR
        lines = [TextFormatter("scheduler").format(record) for record in caplog.records]
        assert [line for line in lines if "scripted" in line and line.endswith("(request from-the-client)")]
        assert router.finished[1].error.message == "scripted failure"
        assert router.outputs[2] == expected_output([98, 1], 20)


async def test_what_cannot_run_is_refused_with_a_reason(tmp_path: Path) -> None:
    async with running(tmp_path, FakeWorker()) as stack:
        router = await stack.router()
        await router.submit(1, [], 5)
        await router.submit(2, [1] * 100, 100)
        await router.submit(3, [VOCAB_SIZE], 5)
        await router.read_until_finished(1, 2, 3)
        assert "range" in router.finished[3].error.message
        assert router.finished[1].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert "empty" in router.finished[1].error.message
        assert "128" in router.finished[2].error.message


async def test_a_full_queue_refuses_with_a_time_to_come_back(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)
    config = SchedulerConfig(max_num_queued_reqs=2, max_num_seqs=1)
    async with running(tmp_path, FakeWorker(script=Script(gate=gate)), config=config) as stack:
        router = await stack.router()
        for index in range(4):
            await router.submit(index, [index + 1], 5)
        await router.read_until_finished(3)
        assert router.finished[3].error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert router.finished[3].error.retry_after_ms > 0


async def test_a_worker_prepares_each_grammar_before_a_sequence_is_planned_with_it(tmp_path: Path) -> None:
    worker = FakeWorker(script=Script(bad_grammar="bad"))
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        for sequence_id, grammar in enumerate(("good", "bad", "", "good", "other"), start=1):
            await router.submit(sequence_id, [sequence_id, 2, 3], 5, grammar=grammar)
        await router.read_until_finished(1, 2, 3, 4, 5)
        assert sorted(worker.grammars) == ["bad", "good", "other"]
        assert router.finished[2].error.code == 3
        assert router.finished[2].error.message == "This grammar is bad."
        assert [len(router.outputs[sequence_id]) for sequence_id in (1, 2, 3, 4, 5)] == [5, 0, 5, 5, 5]


async def test_another_worker_prepares_grammars_again(tmp_path: Path) -> None:
    worker = FakeWorker(script=Script(die_at_step=4))
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        await router.submit(1, [1, 2, 3], 12, grammar="good")
        await router.read_until_finished(1)
        assert worker.grammars == ["good", "good"]


async def test_a_deadline_ends_a_sequence_that_still_waits(tmp_path: Path) -> None:
    config = SchedulerConfig(max_num_seqs=1)
    async with running(tmp_path, FakeWorker(script=Script(gate=asyncio.Semaphore(0))), config=config) as stack:
        router = await stack.router()
        await router.submit(1, [1], 5)
        await router.submit(2, [2], 5, timeout_ms=50)
        await router.read_until_finished(2)
        assert router.finished[2].error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


async def test_the_tokenizer_passes_through_in_pieces(tmp_path: Path) -> None:
    bundle = bytes(range(256)) * 5_000
    async with running(tmp_path, FakeWorker(tokenizer_bundle=bundle)) as stack:
        await stack.router()
        call = stack.stub.GetTokenizer(model_pb2.GetTokenizerRequest())
        chunks = [response.chunk async for response in call]
        assert b"".join(chunks) == bundle
        assert max(map(len, chunks)) <= 512 * 1024


async def test_a_message_that_breaks_the_contract_ends_only_that_stream(tmp_path: Path) -> None:
    async with running(tmp_path, FakeWorker()) as stack:
        good, bad = await stack.router(), await stack.router()
        await bad.write(scheduler_pb2.ConnectRequest(hello=scheduler_pb2.RouterHello(router_id="again")))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await bad.read_until_finished(1)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        await good.submit(1, [7], 10)
        await good.read_until_finished(1)
        assert good.outputs[1] == expected_output([7], 10)


async def test_a_worker_group_that_can_do_less_gets_no_work(tmp_path: Path) -> None:
    """Routers were told of a context of 128, by the group that came first."""
    small = FakeWorker(max_model_len=64)
    server = await start_fake_worker(small, f"unix:{tmp_path}/small")
    fleet = Fleet("test", SchedulerConfig())
    fleet.model.adopt(FakeWorker().hello(FakeModel(), epoch=1).model)
    task = asyncio.create_task(Claimer(fleet, StaticSource([f"unix:{tmp_path}/small"])).run())
    await until(lambda: small.epoch == 3)  # it is asked again, in case it was replaced
    assert not any(group.ready.is_set() for group in fleet.groups)
    assert fleet.model.info.max_model_len == 128
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await server.stop(0)


async def test_steps_are_told_by_their_tokens(tmp_path: Path) -> None:
    async with running(tmp_path, FakeWorker()) as stack:
        router = await stack.router()
        await router.submit(1, list(range(20)), max_tokens=5)
        await router.read_until_finished(1)
        text = generate_latest(registry_of(FleetCollector(stack.fleet))).decode()
        load = (await stack.stats()).load
    assert len(load.num_steps_by_tokens) == 14
    assert (load.num_steps_by_tokens[0] >= 4, load.num_steps_by_tokens[3]) == (True, 1)
    assert load.num_scheduled_tokens == 20 + load.num_steps_by_tokens[0]
    label = f'engine="0",model_name="{router.hello.model.name}"'
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("vllm:iteration_tokens_total"))
    values = {name: float(value) for name, value in found.items()}
    # The prompt in one step, and four more tokens in steps of one each; a step more may be under way.
    in_buckets = [value for name, value in values.items() if "_bucket" in name]
    assert in_buckets == sorted(in_buckets)
    assert len(in_buckets) == 14
    assert in_buckets[0] >= 4
    count, total = (values[f"vllm:iteration_tokens_total_{name}{{{label}}}"] for name in ("count", "sum"))
    assert total == 20 + count - 1
