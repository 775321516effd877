"""The typed Python client, for threads and for asyncio: the same promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from quire import AsyncClient, Client, QuireError, StreamCutError
from quire.client import Delta, Result, Timings
from quire.client.errors import error_from_status
from quire.client.retries import Retries
from quire.inference.v1 import inference_pb2, sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from tests.fakes.waiting import HANG_S
from tests.integration.router.conftest import GREETING, MODEL, StartRouter, answer_text, fake_scheduler
from tests.integration.router.fake_scheduler import Answer
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level

DELTA = inference_pb2.GenerateResponse(delta=inference_pb2.Delta(text="Hi", token_ids=[1]))
LAST = inference_pb2.GenerateResponse(
    delta=inference_pb2.Delta(text="!", token_ids=[2], finish_reason=sampling_pb2.FINISH_REASON_STOP)
)
FINAL = inference_pb2.GenerateResponse(
    final=inference_pb2.Final(
        usage=inference_pb2.Usage(completion_tokens=2),
        timings=inference_pb2.Timings(queue_seconds=0.5, first_token_seconds=1, total_seconds=2),
    )
)
TIMINGS = Timings(queue=0.5, first_token=1.0, last_token=None, total=2.0)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class ScriptedService:
    """Answers each call with the next script: messages, then a status to end with (None: fine)."""

    def __init__(self, *scripts: tuple[list[inference_pb2.GenerateResponse], grpc.StatusCode | None]) -> None:
        self.scripts = list(scripts)
        self.num_calls = 0

    def handlers(self) -> grpc.GenericRpcHandler:
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Generate": grpc.unary_stream_rpc_method_handler(
                self.Generate,
                inference_pb2.GenerateRequest.FromString,
                inference_pb2.GenerateResponse.SerializeToString,
            ),
            "Tokenize": grpc.unary_unary_rpc_method_handler(
                self.Tokenize,
                inference_pb2.TokenizeRequest.FromString,
                inference_pb2.TokenizeResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler("quire.inference.v1.InferenceService", methods)

    async def Generate(  # noqa: N802
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        messages, status = self.scripts[min(self.num_calls, len(self.scripts) - 1)]
        self.num_calls += 1
        for message in messages:
            yield message
        if status is not None:
            await context.abort(status, "scripted")

    async def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: Any
    ) -> inference_pb2.TokenizeResponse:
        self.num_calls += 1
        if self.num_calls == 1:
            await context.abort(UNAVAILABLE, "scripted")
        return inference_pb2.TokenizeResponse(token_ids=[1, 2, 3])


async def generate_in_thread(address: str) -> list[Delta]:
    def run() -> list[Delta]:
        with Client(address) as client, client.stream_generate("x") as stream:
            deltas = list(stream)
            assert stream.usage is not None
            assert stream.timings == TIMINGS
            return deltas

    return await asyncio.to_thread(run)


async def generate_on_the_loop(address: str) -> list[Delta]:
    async with AsyncClient(address) as client, client.stream_generate("x") as stream:
        deltas = [delta async for delta in stream]
        assert stream.usage is not None
        assert stream.timings == TIMINGS
        return deltas


BOTH = pytest.mark.parametrize("generate", [generate_in_thread, generate_on_the_loop])


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[ScriptedService], Awaitable[str]]]:
    servers = []

    async def start(service: ScriptedService) -> str:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([service.handlers()])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        await server.stop(None)


@BOTH
async def test_a_call_that_brought_nothing_is_tried_again(serve: Any, generate: Any) -> None:
    service = ScriptedService(
        ([], UNAVAILABLE), ([], grpc.StatusCode.RESOURCE_EXHAUSTED), ([], None), ([DELTA, LAST, FINAL], None)
    )
    deltas = await generate(await serve(service))
    assert "".join(delta.text for delta in deltas) == "Hi!"
    assert service.num_calls == 4


@BOTH
async def test_after_the_first_token_nothing_is_tried_again(serve: Any, generate: Any) -> None:
    service = ScriptedService(([DELTA], UNAVAILABLE), ([DELTA, LAST, FINAL], None))
    with pytest.raises(QuireError) as caught:
        await generate(await serve(service))
    assert caught.value.status is UNAVAILABLE
    assert service.num_calls == 1


@BOTH
async def test_a_stream_without_its_final_message_was_cut(serve: Any, generate: Any) -> None:
    service = ScriptedService(([DELTA, LAST], None))
    with pytest.raises(StreamCutError):
        await generate(await serve(service))
    assert service.num_calls == 1


@BOTH
async def test_the_client_s_own_mistakes_are_not_tried_again(serve: Any, generate: Any) -> None:
    service = ScriptedService(([], grpc.StatusCode.INVALID_ARGUMENT))
    with pytest.raises(QuireError) as caught:
        await generate(await serve(service))
    assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT
    assert service.num_calls == 1


async def test_tries_end_with_the_timeout(serve: Any) -> None:
    service = ScriptedService(([], UNAVAILABLE))
    address, timeout = await serve(service), 0.15
    while service.num_calls < 2:  # the first try alone may take a slow machine as long
        timeout *= 2
        async with AsyncClient(address, timeout=timeout, max_retries=10_000) as client:
            with pytest.raises(QuireError):
                await client.generate("x")


async def test_unary_calls_are_tried_again(serve: Any) -> None:
    async with AsyncClient(await serve(ScriptedService())) as client:
        assert await client.tokenize("x") == [1, 2, 3]
    address = await serve(ScriptedService())

    def run() -> list[int]:
        with Client(address) as client:
            return client.tokenize("x")

    assert await asyncio.to_thread(run) == [1, 2, 3]


async def test_whole_answers_from_a_real_router(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), api_key=("secret",))

    def check(result: Result) -> None:
        assert result.text == GREETING
        assert [choice.finish_reason for choice in result.choices] == ["stop", "stop"]
        assert result.choices[1].token_ids == (*byte_level().encode(GREETING).ids, EOS_TOKEN_ID)
        assert len(result.choices[0].logprobs) == len(result.choices[0].token_ids)
        assert result.usage.completion_tokens == 2 * len(result.choices[0].token_ids)

    def run() -> None:
        with Client(api.address, api_key="secret") as client:
            check(client.generate("Once", n=2, logprobs=0, temperature=0.5))
            check(client.chat([{"role": "user", "content": "Hi"}], n=2, logprobs=0, model=MODEL))
            tokens = client.tokenize("Grüße")
            assert client.detokenize(tokens) == "Grüße"
            assert client.models()[0].name == MODEL
            assert client.generate([1, 2, 3], max_tokens=2).choices[0].finish_reason == "length"

    await asyncio.to_thread(run)
    async with AsyncClient(api.address, api_key="secret") as client:
        check(await client.generate("Once", n=2, logprobs=0))
        check(await client.chat([{"role": "user", "content": "Hi"}], n=2, logprobs=0))
        tokens = await client.tokenize([{"role": "user", "content": "Hi"}])
        assert (await client.detokenize(tokens)).startswith("<|im_start|>user")
        assert [model.max_model_len for model in await client.models()] == [256, 256]


async def test_errors_carry_openai_s_fields(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), api_key=("secret",))
    async with AsyncClient(api.address) as client:
        with pytest.raises(QuireError) as caught:
            await client.generate("x")
        assert (caught.value.status, caught.value.code) == (grpc.StatusCode.UNAUTHENTICATED, "invalid_api_key")
    async with AsyncClient(api.address, api_key="secret") as client:
        with pytest.raises(QuireError, match="temperature") as caught:
            await client.generate("x", temperature=9)
        assert caught.value.param == "options.sampling.temperature"
        assert caught.value.type == "invalid_request_error"


async def test_leaving_a_stream_ends_its_generation(start_router: StartRouter) -> None:
    ids = [*byte_level().encode("Hello, world!").ids, EOS_TOKEN_ID]
    scheduler = fake_scheduler(lambda submit, choice: Answer(ids, pause_after=1))
    api = await start_router(scheduler)
    async with AsyncClient(api.address) as client:
        async with client.stream_generate("x") as stream:
            async for _ in stream:
                break
        await scheduler.wait_for(lambda: len(scheduler.aborted) == 1)

    def run() -> None:
        with Client(api.address) as client, client.stream_generate("x") as stream:
            next(iter(stream))

    await asyncio.to_thread(run)
    await scheduler.wait_for(lambda: len(scheduler.aborted) == 2)


async def test_a_stream_closed_by_another_task_just_ends(start_router: StartRouter) -> None:
    ids = [*byte_level().encode("Hello, world!").ids, EOS_TOKEN_ID]
    api = await start_router(fake_scheduler(lambda submit, choice: Answer(ids, pause_after=1)))
    async with AsyncClient(api.address) as client:
        stream = client.stream_generate("x")
        has_begun = asyncio.Event()

        async def consume() -> int:
            num_deltas = 0
            async for _ in stream:
                num_deltas += 1
                has_begun.set()
            return num_deltas

        consumer = asyncio.create_task(consume())
        await has_begun.wait()
        stream.close()
        assert await asyncio.wait_for(consumer, HANG_S) == 1


async def test_unknown_options_are_refused_before_anything_is_sent(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("x")))
    async with AsyncClient(api.address) as client:
        with pytest.raises(TypeError, match="'max_token'"):
            await client.generate("x", max_token=3)  # type: ignore[call-arg]


def test_a_reset_stream_is_a_server_that_is_away() -> None:
    """Envoy can end a stream whose router was killed in no other way, and gRPC's libraries call that INTERNAL."""
    reset = error_from_status(grpc.StatusCode.INTERNAL, "Stream removed (RST_STREAM with error code 2)", ())
    assert (reset.status, reset.is_final) == (UNAVAILABLE, False)
    other = error_from_status(grpc.StatusCode.INTERNAL, "fault", ())
    assert other.status is grpc.StatusCode.INTERNAL
    final = error_from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "large", (("grpc-retry-pushback-ms", "-1"),))
    with pytest.raises(QuireError):
        Retries(5, None).delay(final)
    assert Retries(5, None).delay(error_from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", ())) > 0


@pytest.mark.parametrize("options", [{}, {"prompt_logprobs": 0}])
async def test_a_stream_has_all_that_came_with_its_error(start_router: StartRouter, options: dict[str, Any]) -> None:
    ids = byte_level().encode("Hello", add_special_tokens=False).ids
    error = scheduler_pb2.Error(code=13, message="the logits are not numbers")
    api = await start_router(fake_scheduler(lambda submit, choice: Answer(ids, error=error, tokens_per_frame=len(ids))))
    text = ""

    async def read() -> None:
        nonlocal text
        async with AsyncClient(api.address) as client, client.stream_generate("x", max_tokens=20, **options) as stream:
            async for delta in stream:
                text += delta.text

    with pytest.raises(QuireError, match="not numbers"):
        await read()
    assert text == "Hello"
