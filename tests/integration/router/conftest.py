"""A real router over real gRPC, between a fake scheduler and the tests."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody
from tokenizers import Tokenizer

from deploy.envoy.routes import http_annotations
from quire.inference.v1 import model_pb2, sampling_pb2
from quire.kserve.v1 import open_inference_pb2, open_inference_pb2_grpc
from quire.openai.v1 import openai_pb2, openai_pb2_grpc
from quire.scheduler.v1 import scheduler_pb2
from services.router.chat import strict_tools, tool_faults
from services.router.config import RouterConfig
from services.router.main import Router
from shared.discovery import Source
from tests.fakes.waiting import HANG_S
from tests.fidelity import own_document, published
from tests.fidelity.answer import Answer as HttpAnswer
from tests.integration.router.fake_scheduler import Answer, FakeScheduler, Script, bundle_of
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level, tokenizer_config

MODEL = "test-model"
MAX_MODEL_LEN = 256
GREETING = "Hello, world! Grüße aus Köln 👋🏽 👨‍👩‍👧‍👦 你好"


def answer_text(text: str, tokenizer: Tokenizer | None = None, **options: Any) -> Script:
    """Returns a script that answers every request with this text and an end token."""
    ids = (tokenizer or byte_level()).encode(text, add_special_tokens=False).ids

    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        return Answer([*ids, EOS_TOKEN_ID], **options)

    return script


def model_info(bundle_sha256: str, bundle_bytes: int, tokenizer: Tokenizer, name: str = MODEL) -> model_pb2.ModelInfo:
    return model_pb2.ModelInfo(
        name=name,
        aliases=[f"{name}-alias"],
        max_model_len=MAX_MODEL_LEN,
        vocab_size=tokenizer.get_vocab_size() + 8,
        eos_token_ids=[EOS_TOKEN_ID],
        default_sampling=sampling_pb2.SamplingParams(temperature=0.7, top_k=50),
        tokenizer_sha256=bundle_sha256,
        tokenizer_bytes=bundle_bytes,
        architecture="LlamaForCausalLM",
        dtype="float32",
    )


def fake_scheduler(
    script: Script | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    chat_template: str | list[dict[str, str]] | None = None,
    without_chat_template: bool = False,
    name: str = MODEL,
    max_model_len: int = MAX_MODEL_LEN,
) -> FakeScheduler:
    tokenizer = tokenizer or byte_level()
    config = tokenizer_config(None) if without_chat_template else tokenizer_config()
    if chat_template is not None:
        config = tokenizer_config(chat_template)
    bundle, sha256 = bundle_of(tokenizer.to_str(), json.dumps(config))
    info = model_info(sha256, len(bundle), tokenizer, name)
    info.max_model_len = max_model_len
    return FakeScheduler(info, bundle, script or answer_text(GREETING))


@dataclass(slots=True)
class Reply:
    """A reply as Envoy would convert it to HTTP."""

    content_type: str
    messages: list[bytes]

    @property
    def json(self) -> Any:
        assert self.content_type == "application/json"
        return json.loads(b"".join(self.messages))

    @property
    def events(self) -> list[Any]:
        """Returns the parsed events, without [DONE]. Asserts that messages split no event and no character."""
        assert self.content_type == "text/event-stream"
        lines = []
        for message in self.messages:
            text = message.decode()
            assert text.endswith("\n\n")
            lines += text.removesuffix("\n\n").split("\n\n")
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@dataclass(slots=True)
class RefusedError(Exception):
    status: grpc.StatusCode
    error: dict[str, Any]
    retry_after: str | None


class Api:
    """A client of the router's OpenAI service, in the place of Envoy."""

    def __init__(self, address: str, channel: grpc.aio.Channel, router: Router) -> None:
        self.address = address
        self.channel = channel
        self.router = router
        self.stub: openai_pb2_grpc.OpenAIServiceAsyncStub = openai_pb2_grpc.OpenAIServiceStub(channel)

    async def chat(self, **body: Any) -> Reply:
        body.setdefault("model", MODEL)
        body.setdefault("messages", [{"role": "user", "content": "Hello"}])
        return await self.post("CreateChatCompletion", body)

    async def complete(self, **body: Any) -> Reply:
        body.setdefault("model", MODEL)
        body.setdefault("prompt", "Hello")
        return await self.post("CreateCompletion", body)

    async def post(self, method: str, body: Any, metadata: Sequence[tuple[str, str]] = ()) -> Reply:
        """Sends a request. `body`: bytes, which are sent as they are, or a value that is sent as JSON.

        Raises RefusedError if the router refuses the request.
        """
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        call = getattr(self.stub, method)(HttpBody(content_type="application/json", data=data), metadata=metadata)
        try:
            replies = [reply async for reply in call] if hasattr(call, "__aiter__") else [await call]
        except grpc.aio.AioRpcError as error:
            raise error_reply(error, method) from None
        return checked(Reply(replies[0].content_type, [reply.data for reply in replies]), method)

    async def get(self, method: str, request: Any = None, metadata: Sequence[tuple[str, str]] = ()) -> Reply:
        requests = {
            "ListModels": openai_pb2.ListModelsRequest,
            "GetHealth": openai_pb2.GetHealthRequest,
            "GetMetrics": openai_pb2.GetMetricsRequest,
            "GetVersion": openai_pb2.GetVersionRequest,
            "GetPing": HttpBody,
            "GetTokenizerInfo": openai_pb2.GetTokenizerInfoRequest,
        }
        try:
            call = getattr(self.stub, method)(request or requests[method](), metadata=metadata)
            replies = [reply async for reply in call] if hasattr(call, "__aiter__") else [await call]
        except grpc.aio.AioRpcError as error:
            raise error_reply(error, method) from None
        return checked(Reply(replies[0].content_type, [reply.data for reply in replies]), method)

    async def refused(self, method: str, body: Any, metadata: Sequence[tuple[str, str]] = ()) -> RefusedError:
        """Sends a request that the router must refuse, and returns the error."""
        with pytest.raises(RefusedError) as caught:
            await self.post(method, body, metadata)
        return caught.value


# HTTP status that Envoy sends for each gRPC status.
HTTP_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


def checked(reply: Reply, method: str, status: int = 200, service: str = "openai.v1.OpenAIService") -> Reply:
    """Returns the reply after checking it with our OpenAPI document and, on OpenAI's paths, OpenAI's schema."""
    verb, template = http_annotations()[f"quire.{service}.{method}"][0]
    path = re.sub(r"{[^}]*}", MODEL, template)
    answer = HttpAnswer(verb, path, status, reply.content_type, b"".join(reply.messages))
    assert [*own_document.problems(answer), *published.problems(answer)] == []
    return reply


def error_reply(error: grpc.aio.AioRpcError, method: str | None = None) -> RefusedError:
    """Converts a gRPC error to a RefusedError. `method`: of OpenAI's service; if set, the reply is checked."""
    trailers = {key: str(value) for key, value in error.trailing_metadata() or ()}
    assert len(trailers["quire-error"]) <= 4096
    assert trailers["quire-error"].isascii()
    body = json.loads(trailers["quire-error"])
    if "type" in body:
        assert set(body) == {"type", "error"}  # Anthropic's shape
        assert {"message", "type"} <= set(body["error"])
    else:
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
    if method is not None:
        checked(Reply("application/json", [trailers["quire-error"].encode()]), method, HTTP_STATUS[error.code()])
    return RefusedError(error.code(), body["error"], trailers.get("retry-after"))


StartRouter = Callable[..., Any]


@pytest.fixture(autouse=True)
def _search_for_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error names the faulty tool however slow the machine is."""
    monkeypatch.setattr(tool_faults, "_MAX_SECONDS", HANG_S)
    monkeypatch.setattr(strict_tools, "_MAX_SECONDS", HANG_S)


@pytest.fixture
async def start_router() -> AsyncIterator[StartRouter]:
    """Starts a router with the given fake schedulers, and stops all of them at the end of the test. `source`: discovers
    the schedulers; if left out, the router is given their addresses."""
    async with AsyncExitStack() as stack:

        async def start(
            *schedulers: FakeScheduler,
            wait: bool = True,
            tracing_enabled: bool = False,
            source: Source | None = None,
            **config: Any,
        ) -> Api:
            addresses = []
            for scheduler in schedulers:
                addresses.append(scheduler.address or await scheduler.start())
                stack.push_async_callback(scheduler.stop)
            options: dict[str, Any] = {"listen": ("127.0.0.1:0",), "drain_timeout": 0.0, "scheduler_wait": 5.0}
            router_config = RouterConfig(scheduler=tuple(addresses), **(options | config))
            router = Router(router_config, tracing_enabled, schedulers=source)
            stack.push_async_callback(router.stop)
            (address,) = await router.start()
            if wait:
                await router.ready.wait()
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
            return Api(address, channel, router)

        yield start


def ready_scheduler(name: str = MODEL) -> FakeScheduler:
    """Returns a scheduler that has a worker."""
    scheduler = fake_scheduler(name=name)
    scheduler.load.num_ready_groups = 1
    return scheduler


async def until_ready(api: Api, *names: str) -> None:
    """Waits until the schedulers of these models have reported their workers. A name may be NAME@VERSION."""
    stub: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(api.channel)
    for name, _, version in (name.partition("@") for name in names):
        while not (await stub.ModelReady(open_inference_pb2.ModelReadyRequest(name=name, version=version))).ready:
            pass
