"""Requests that begin alike go to one scheduler; what keeps them apart, or puts one first, goes along."""

from __future__ import annotations

import json

from google.api.httpbody_pb2 import HttpBody

from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.router.conftest import GREETING, MODEL, Api, StartRouter, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, FakeScheduler


async def started(start_router: StartRouter, count: int = 4) -> tuple[Api, list[FakeScheduler]]:
    schedulers = [fake_scheduler() for _ in range(count)]
    api = await start_router(*schedulers)
    while not all(connection.load.last.num_blocks for connection in api.router.placement.connections):
        await api.get("GetHealth")
    return api, schedulers


def taken(schedulers: list[FakeScheduler]) -> list[int]:
    counts = [len(scheduler.submits) for scheduler in schedulers]
    for scheduler in schedulers:
        scheduler.submits.clear()
    return counts


async def test_a_chat_stays_where_its_beginning_is_cached(start_router: StartRouter) -> None:
    api, schedulers = await started(start_router)
    homes = set()
    for number in range(12):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Question {number}"}]
        await api.chat(messages=messages, max_tokens=5)
        home = taken(schedulers).index(1)
        homes.add(home)
        later = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "?"}]
        await api.chat(messages=later, max_tokens=5)
        assert taken(schedulers).index(1) == home
    assert len(homes) > 1, "different chats are spread"


async def test_a_key_given_brings_different_prompts_together(start_router: StartRouter) -> None:
    api, schedulers = await started(start_router)
    for number in range(8):
        await api.complete(prompt=f"{number} is a number", prompt_cache_key="numbers", max_tokens=5)
    assert sorted(taken(schedulers)) == [0, 0, 0, 8]
    for number in range(8):
        await api.complete(prompt=f"{number} is a number")
    assert sorted(taken(schedulers)) != [0, 0, 0, 8]


async def test_a_busy_home_sends_its_requests_on(start_router: StartRouter) -> None:
    api, schedulers = await started(start_router)
    await api.chat(max_tokens=5)
    home = schedulers[taken(schedulers).index(1)]
    home.load.outstanding_tokens = 10**6
    connection = next(c for c in api.router.placement.connections if c.scheduler_id == home.scheduler_id)
    while connection.load.last.outstanding_tokens < 10**6:
        await api.get("GetHealth")
    await api.chat()
    assert not home.submits


async def test_salt_priority_and_tenant_go_along(start_router: StartRouter) -> None:
    api, (scheduler,) = await started(start_router, 1)
    body = {"messages": [{"role": "user", "content": "x"}], "model": MODEL, "cache_salt": "mine", "priority": -3}
    await api.post("CreateChatCompletion", body, metadata=[("x-tenant-id", "acme")])
    stub = inference_pb2_grpc.InferenceServiceStub(api.channel)
    options = inference_pb2.GenerationOptions(cache_salt="ours", priority=2, tenant="initech")
    async for _ in stub.Generate(inference_pb2.GenerateRequest(text="x", options=options)):
        pass
    told = [(submit.cache_salt, submit.priority, submit.tenant) for submit in scheduler.submits]
    assert told == [("mine", -3, "acme"), ("ours", 2, "initech")]


async def test_cached_tokens_are_those_that_not_even_the_first_choice_computed(start_router: StartRouter) -> None:
    api, (scheduler,) = await started(start_router, 1)
    scheduler.script = lambda _, choice: Answer([5], num_cached_tokens=4 if choice.choice_index else 0)
    reply = (await api.chat(n=3)).json
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_an_answer_that_a_stop_string_ends_has_its_cached_tokens_too(start_router: StartRouter) -> None:
    api, _ = await started(start_router, 1)
    reply = (await api.chat(stop=GREETING[3:6])).json
    assert reply["choices"][0]["message"]["content"] == GREETING[:3]
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 4


async def test_a_reset_reaches_every_scheduler(start_router: StartRouter) -> None:
    api, schedulers = await started(start_router, 3)
    reply = await api.stub.ResetPrefixCache(HttpBody(data=json.dumps({}).encode()))
    assert reply.data == b"{}"
    assert [scheduler.num_cache_resets for scheduler in schedulers] == [1, 1, 1]
