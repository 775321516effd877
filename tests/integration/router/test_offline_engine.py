"""What `LLM` makes of a router's answers, and of a router that goes away."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from quire import PoolingParams, QuireError, RequestOutput, SamplingParams, StackError
from quire.client import TemplateOptions
from quire.offline import engine as engine_module
from quire.offline.conversations import parse_conversations, parse_tools
from quire.offline.engine import EmbeddingRequest, Engine, Request
from quire.offline.outputs import Logprob
from quire.offline.prompts import Message, Prompt, PromptLike, parse_prompts
from tests.integration.router.conftest import GREETING, StartRouter, answer_text, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, unpack
from tests.integration.router.small_tokenizers import byte_level
from tests.integration.router.test_client import DELTA, FINAL, LAST, UNAVAILABLE, ScriptedService
from tests.integration.router.test_embeddings import embedding_scheduler, expected

SOME_IDS = Prompt(token_ids=(1, 2))


def there() -> str | None:
    return None


def gone() -> str | None:
    return "worker failed for the fourth time within a minute: why"


def requests(*prompts: Prompt, params: SamplingParams | None = None) -> list[Request]:
    return [Request(str(index), prompt, params, 0) for index, prompt in enumerate(prompts)]


@asynccontextmanager
async def address_of(service: ScriptedService) -> AsyncIterator[str]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([service.handlers()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def ask(engine: Engine, asked: list[Request]) -> list[RequestOutput]:
    done: list[int] = []
    try:
        outputs = await engine.answer(asked, done.append)
    finally:
        await engine.close()
    assert done == [1] * len(asked)
    return outputs


async def test_outputs_are_the_routers_answers(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    params = SamplingParams(n=2, max_tokens=200, logprobs=2, prompt_logprobs=1, stop=["Köln", "never"])
    output, other = await ask(
        Engine(api.address, None, 3, there), requests(Prompt(text="Once"), SOME_IDS, params=params)
    )

    assert (output.request_id, output.prompt) == ("0", "Once")
    assert output.prompt_token_ids == byte_level().encode("Once").ids
    assert (other.prompt, other.prompt_token_ids) == (None, [1, 2])
    # The fake scheduler says 4; the prompt has 1.
    assert output.num_cached_tokens == 1
    first, second = output.outputs
    assert (first.index, second.index) == (0, 1)
    assert first.text == GREETING.partition("Köln")[0]
    assert (first.finish_reason, first.stop_reason) == ("stop", "Köln")
    assert first.logprobs is not None
    assert len(first.logprobs) == len(first.token_ids)
    for token_id, entry in zip(first.token_ids, first.logprobs, strict=True):
        assert next(iter(entry)) == token_id
        assert isinstance(entry[token_id], Logprob)
        assert entry[token_id].decoded_token == byte_level().decode([token_id], skip_special_tokens=False)
    assert first.cumulative_logprob == sum(
        entry[token_id].logprob for token_id, entry in zip(first.token_ids, first.logprobs, strict=True)
    )


async def test_prompts_log_probabilities_are_as_over_http(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    (choice,) = (await api.complete(prompt="Grüße", prompt_logprobs=2)).json["choices"]
    (output,) = await ask(
        Engine(api.address, None, 3, there), requests(Prompt(text="Grüße"), params=SamplingParams(prompt_logprobs=2))
    )

    assert output.prompt_logprobs is not None
    as_json = json.loads(json.dumps(output.prompt_logprobs, default=dataclasses.asdict))
    assert as_json == choice["prompt_logprobs"]
    assert output.prompt_logprobs[0] is None
    for token_id, entry in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert entry is not None
        assert next(iter(entry)) == token_id
    (other,) = await ask(Engine(api.address, None, 3, there), requests(Prompt(text="x"), params=SamplingParams()))
    assert other.prompt_logprobs is None


async def test_the_routers_durations_become_moments(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    before = time.monotonic()
    api = await start_router(scheduler)
    scheduler.script = lambda _, choice: Answer([5, 6, 7], queue_us=60_000_000 if choice.choice_index else 30_000_000)
    asked = requests(SOME_IDS, params=SamplingParams(n=2))
    (output,) = await ask(Engine(api.address, None, 3, there), asked)
    seconds = time.monotonic() - before

    times = output.metrics
    assert times is not None
    assert times.arrival_time == asked[0].arrival_time
    # The choice that was scheduled first counts.
    assert times.time_in_queue is not None
    assert 30 <= times.time_in_queue <= 30 + seconds
    assert times.first_token_time is not None
    assert times.arrival_time <= times.first_token_time <= times.finished_time
    assert times.num_generation_tokens == 6


async def test_a_request_may_bring_the_seed_that_its_parameters_lack(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    asked = [
        Request(str(index), SOME_IDS, params, 0, seed=7)
        for index, params in enumerate([None, SamplingParams(), SamplingParams(seed=3)])
    ]
    await ask(Engine(api.address, None, 1, there), asked)

    assert [submit.sampling.seed for submit in scheduler.submits] == [7, 7, 3]


async def test_a_prompt_is_cut_and_told_as_it_was_left(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    ids = byte_level().encode("one, two, three").ids
    params = SamplingParams(truncate_prompt_tokens=3)
    by_text, by_ids = await ask(
        Engine(api.address, None, 3, there),
        requests(Prompt(text="one, two, three"), Prompt(token_ids=tuple(ids)), params=params),
    )

    assert by_text.prompt == "one, two, three"
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == ids[-3:]
    assert [unpack(submit.prompt_token_ids) for submit in scheduler.submits] == [ids[-3:]] * 2


async def test_without_detokenizing_there_is_no_text(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    params = SamplingParams(detokenize=False, logprobs=0, prompt_logprobs=0)
    (output,) = await ask(Engine(api.address, None, 3, there), requests(Prompt(text="Once"), params=params))

    (completion,) = output.outputs
    assert completion.text == ""
    assert completion.token_ids == byte_level().encode(GREETING).ids[:16]
    assert completion.logprobs is not None
    told = [*completion.logprobs, *(output.prompt_logprobs or [])]
    assert all(logprob.decoded_token is None for entry in told if entry for logprob in entry.values())


async def test_of_several_as_many_come_as_are_wanted(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    (output,) = await ask(
        Engine(api.address, None, 3, there), requests(SOME_IDS, params=SamplingParams(n=2, best_of=3))
    )

    assert len(scheduler.submits[0].choices) == 3
    assert [completion.index for completion in output.outputs] == [0, 1]
    assert output.outputs[0].logprobs is None


async def test_conversations_are_the_prompts_that_http_makes_of_them(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(
        chat_template="{{ extra }}{% for message in messages %}[{{ message.role }}:{{ message.name }}:"
        "{{ message.content }}{{ message.tool_calls }}{{ message.reasoning_content }}]{% endfor %}"
        "{% if tools %}{{ tools }}{% endif %}{% if add_generation_prompt %}>{% endif %}",
        max_model_len=2048,
    )
    api = await start_router(scheduler)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages: list[Message] = [
        {"role": "user", "content": "Hi", "name": "me"},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "fine"},
        {"role": "assistant", "content": "Then"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": "An f."}}]
    template = TemplateOptions(continue_final_message=True, chat_template_kwargs={"extra": "e"})
    (prompt,) = parse_conversations(messages, {**template, "tools": parse_tools(tools)})
    (output,) = await ask(Engine(api.address, None, 3, there), requests(prompt))

    assert output.prompt is not None
    assert output.prompt.startswith("e")
    assert "[user:me:Hi]" in output.prompt
    assert output.prompt.endswith("Then")
    assert "An f." in output.prompt
    body = {"messages": messages, "tools": tools, **template}
    assert (await api.post("Tokenize", body)).json["tokens"] == output.prompt_token_ids
    assert unpack(scheduler.submits[0].prompt_token_ids) == output.prompt_token_ids


async def test_embeddings_are_the_routers_in_the_order_of_the_prompts(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler(is_matryoshka=True))
    engine, done = Engine(api.address, None, 2, there), list[int]()
    given: list[PromptLike] = ["Hello", byte_level().encode("Köln").ids, {"prompt": "a", "cache_salt": "s"}]
    prompts = parse_prompts(given)
    each = [PoolingParams(), PoolingParams(dimensions=2), PoolingParams(normalize=True, truncate_prompt_tokens=1)]
    asked = [EmbeddingRequest(str(i), *pair) for i, pair in enumerate(zip(prompts, each, strict=True))]
    try:
        first, second, third = await engine.embed(asked, done.append)
        with pytest.raises(QuireError, match="has no tokens") as raised:
            await engine.embed([asked[0], EmbeddingRequest("9", Prompt(text=""), PoolingParams())], done.append)
    finally:
        await engine.close()

    assert (first.request_id, first.finished, first.outputs.hidden_size) == ("0", True, 6)
    assert first.outputs.embedding == expected("Hello")
    assert first.prompt_token_ids == byte_level().encode("Hello").ids
    assert second.outputs.embedding == expected("Köln", dimensions=2)
    assert third.outputs.embedding == pytest.approx(expected("a", normalize=True))
    assert third.prompt_token_ids == byte_level().encode("a").ids
    assert raised.value.__notes__ == ["The error concerns the prompt with index 1 of 2 prompts."]
    assert done[:3] == [1, 1, 1]


async def test_without_parameters_the_models_own_count(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text("x" * 50))
    api = await start_router(scheduler)
    (output,) = await ask(Engine(api.address, None, 4, there), requests(SOME_IDS))

    (submit,) = scheduler.submits
    assert submit.sampling.temperature == pytest.approx(0.7)
    assert (submit.sampling.top_k, submit.stop.max_tokens) == (50, 16)
    (completion,) = output.outputs
    assert completion.logprobs is None
    assert completion.cumulative_logprob is None


async def test_an_answer_that_broke_off_begins_again() -> None:
    service = ScriptedService(
        ([DELTA], UNAVAILABLE), ([DELTA], None), ([], grpc.StatusCode.RESOURCE_EXHAUSTED), ([DELTA, LAST, FINAL], None)
    )
    async with address_of(service) as address:
        (output,) = await ask(Engine(address, None, 4, there), requests(SOME_IDS))

    assert service.num_calls == 4
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("Hi!", [1, 2])


async def test_a_stack_that_is_gone_is_told_in_its_own_words() -> None:
    async with address_of(ScriptedService(([DELTA], UNAVAILABLE))) as address:
        with pytest.raises(StackError, match=r"^worker failed for the fourth time within a minute: why$"):
            await ask(Engine(address, None, 4, gone), requests(SOME_IDS, SOME_IDS))


async def test_a_refusal_is_final_and_ends_the_others() -> None:
    service = ScriptedService(([], grpc.StatusCode.INVALID_ARGUMENT))
    async with address_of(service) as address:
        with pytest.raises(QuireError, match="scripted") as raised:
            await ask(Engine(address, None, 1, there), requests(SOME_IDS, SOME_IDS, SOME_IDS))

    assert raised.value.__notes__ == ["The error concerns the prompt with index 0 of 3 prompts."]
    assert service.num_calls == 1


async def test_tries_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_MAX_RETRIES", 1)
    service = ScriptedService(([], UNAVAILABLE))
    async with address_of(service) as address:
        with pytest.raises(QuireError, match="scripted"):
            await ask(Engine(address, None, 1, there), requests(SOME_IDS))

    assert service.num_calls == 2
