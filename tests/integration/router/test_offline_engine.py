"""What `LLM` makes of a router's answers, and of a router that goes away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from quire import QuireError, RequestOutput, SamplingParams, StackError
from quire.offline import engine as engine_module
from quire.offline.engine import Engine, Request
from quire.offline.outputs import Logprob
from quire.offline.prompts import Prompt
from tests.integration.router.conftest import GREETING, StartRouter, answer_text, fake_scheduler
from tests.integration.router.small_tokenizers import byte_level
from tests.integration.router.test_client import DELTA, FINAL, LAST, UNAVAILABLE, ScriptedService

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
    params = SamplingParams(n=2, max_tokens=200, logprobs=2, stop=["Köln", "never"])
    output, other = await ask(
        Engine(api.address, None, 3, there), requests(Prompt(text="Once"), SOME_IDS, params=params)
    )

    assert (output.request_id, output.prompt) == ("0", "Once")
    assert output.prompt_token_ids == byte_level().encode("Once").ids
    assert (other.prompt, other.prompt_token_ids) == (None, [1, 2])
    assert output.num_cached_tokens == 4
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

    assert raised.value.__notes__ == ["This is about prompt 0 of 3."]
    assert service.num_calls == 1


async def test_tries_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_MAX_RETRIES", 1)
    service = ScriptedService(([], UNAVAILABLE))
    async with address_of(service) as address:
        with pytest.raises(QuireError, match="scripted"):
            await ask(Engine(address, None, 1, there), requests(SOME_IDS))

    assert service.num_calls == 2
