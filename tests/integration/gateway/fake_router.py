"""A router without anything behind it: both of its services, answering as a test scripts it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.api.httpbody_pb2 import HttpBody

from quire.anthropic.v1 import anthropic_pb2_grpc
from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from quire.kserve.v1 import open_inference_pb2, open_inference_pb2_grpc
from quire.ollama.v1 import ollama_pb2_grpc
from quire.openai.v1 import openai_pb2_grpc
from services.router.errors import ApiError, ErrorKind
from services.router.rpc import details_metadata
from shared.grpc_server import GrpcServer
from shared.message_size import DEFAULT_MAX_BODY_BYTES, ENVELOPE_BYTES
from tests.fakes.waiting import HANG_S

Context = grpc.aio.ServicerContext[Any, Any]
Script = Callable[[HttpBody, Context], AsyncIterator[HttpBody]]


def body(content: bytes | str, content_type: str = "application/json") -> HttpBody:
    return HttpBody(content_type=content_type, data=content.encode() if isinstance(content, str) else content)


def event(data: str) -> HttpBody:
    return body(f"data: {data}\n\n", "text/event-stream")


def error_json(message: str, type: str, param: str | None, code: str | None) -> str:  # noqa: A002
    return json.dumps({"error": {"message": message, "type": type, "param": param, "code": code}})


async def echo(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
    yield body(request.data)


class FakeRouter:
    """Its HTTP side answers POSTs by `script`, and counts them; its typed side knows one model."""

    def __init__(self, name: str = "fake") -> None:
        self.name = name
        self.reset()
        services = ["quire.openai.v1.OpenAIService", "quire.inference.v1.InferenceService"]
        self._server = GrpcServer(services, max_request_bytes=DEFAULT_MAX_BODY_BYTES + ENVELOPE_BYTES)
        self._server.add(openai_pb2_grpc.add_OpenAIServiceServicer_to_server, FakeOpenAI(self))
        self._server.add(anthropic_pb2_grpc.add_AnthropicServiceServicer_to_server, FakeAnthropic(self))
        self._server.add(ollama_pb2_grpc.add_OllamaServiceServicer_to_server, FakeOllama())  # type: ignore[abstract]
        self._server.add(open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server, FakeKserve())  # type: ignore[abstract]
        self.inference = FakeInference(name)
        self._server.add(inference_pb2_grpc.add_InferenceServiceServicer_to_server, self.inference)

    def reset(self) -> None:
        self.script: Script = echo
        self.calls = 0
        self.cancelled = asyncio.Event()
        self.metadata: dict[str, str | bytes] = {}

    async def start(self, address: str) -> list[str]:
        addresses = await self._server.start([address])
        await self._server.set_serving(True)
        return addresses

    async def set_serving(self, serving: bool) -> None:
        await self._server.set_serving(serving)

    async def stop(self) -> None:
        await self._server.stop(0)

    async def drain(self) -> None:
        """Does what a router does on SIGTERM. Returns when its streams have ended."""
        await self._server.stop(HANG_S)

    async def run_script(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        self.calls += 1
        self.metadata = dict(context.invocation_metadata() or ())
        try:
            async for message in self.script(request, context):
                yield message
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class FakeKserve(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    async def ServerReady(self, request: Any, context: Context) -> Any:  # noqa: N802
        return open_inference_pb2.ServerReadyResponse(ready=True)

    async def ServerLive(self, request: Any, context: Context) -> Any:  # noqa: N802
        return open_inference_pb2.ServerLiveResponse(live=True)


class FakeOpenAI(openai_pb2_grpc.OpenAIServiceServicer):
    def __init__(self, router: FakeRouter) -> None:
        self._router = router

    async def CreateChatCompletion(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        async for message in self._router.run_script(request, context):
            yield message

    async def CreateCompletion(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        async for message in self._router.run_script(request, context):
            yield message

    async def CreateResponse(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        async for message in self._router.run_script(request, context):
            yield message

    async def CountInputTokens(self, request: HttpBody, context: Context) -> HttpBody:  # noqa: N802
        return body(b"{}")

    async def GetResponse(self, request: Any, context: Context) -> HttpBody:  # noqa: N802
        return body(json.dumps({"id": request.response_id}))

    async def CreateEmbedding(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        async for message in self._router.run_script(request, context):
            yield message

    async def CreateScore(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        async for message in self._router.run_script(request, context):
            yield message

    async def CreateClassification(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        async for message in self._router.run_script(request, context):
            yield message

    async def CreateRerank(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        async for message in self._router.run_script(request, context):
            yield message

    async def CreateChatCompletionBatch(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        async for message in self._router.run_script(request, context):
            yield message

    async def CreateCohereEmbedding(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        async for message in self._router.run_script(request, context):
            yield message

    async def CreateInvocation(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        async for message in self._router.run_script(request, context):
            yield message

    async def GetTokenizerInfo(self, request: Any, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        yield body(json.dumps({"model": request.model}))

    async def GetPing(self, request: Any, context: Context) -> HttpBody:  # noqa: N802
        return body(json.dumps({"router": self._router.name}))

    async def ListModels(self, request: Any, context: Context) -> HttpBody:  # noqa: N802
        return body(json.dumps({"object": "list", "data": [{"id": self._router.name}]}))

    async def GetModel(self, request: Any, context: Context) -> HttpBody:  # noqa: N802
        return body(json.dumps({"id": request.model}))

    async def Tokenize(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        for start in range(0, len(request.data), 2**20):
            yield body(request.data[start : start + 2**20])

    async def Detokenize(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        yield body(request.data)

    async def ResetPrefixCache(self, request: HttpBody, context: Context) -> HttpBody:  # noqa: N802
        return body("{}")

    async def GetHealth(self, request: Any, context: Context) -> HttpBody:  # noqa: N802
        return body(json.dumps({"router": self._router.name}))

    async def GetVersion(self, request: Any, context: Context) -> HttpBody:  # noqa: N802
        return body(json.dumps({"version": "fake"}))

    async def GetMetrics(self, request: Any, context: Context) -> HttpBody:  # noqa: N802
        return body("", "text/plain")


class FakeAnthropic(anthropic_pb2_grpc.AnthropicServiceServicer):
    def __init__(self, router: FakeRouter) -> None:
        self._router = router

    async def CreateMessage(self, request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:  # noqa: N802
        async for message in self._router.run_script(request, context):
            yield message

    async def CountTokens(self, request: HttpBody, context: Context) -> HttpBody:  # noqa: N802
        return body(request.data)


class FakeOllama(ollama_pb2_grpc.OllamaServiceServicer):
    """It has nothing but the path by which clients see that somebody is there."""

    async def GetRoot(self, request: Any, context: Context) -> HttpBody:  # noqa: N802
        return body("here", "text/plain")


class FakeInference(inference_pb2_grpc.InferenceServiceServicer):
    """It lists its model and, asked for it by name, generates; every other call fails, for its model does not exist."""

    def __init__(self, name: str) -> None:
        self._name = name
        # Of the call that came last.
        self.metadata: dict[str, str | bytes] = {}
        self.seconds_left: float | None = None
        # How many calls of Generate fail before one does not.
        self.num_failures = 0
        # What gRPC's library says of a message that is too large: the details of the next calls of Generate.
        self.refusal = ""
        # A message of Generate that is sent before the call goes on, and what it goes on to wait for.
        self.release: asyncio.Event | None = None

    async def ListModels(self, request: Any, context: Context) -> inference_pb2.ListModelsResponse:  # noqa: N802
        return inference_pb2.ListModelsResponse(models=[inference_pb2.Model(name=self._name, max_model_len=512)])

    async def Generate(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        """The prompt, piece by piece. A prompt `break` breaks off after the first piece."""
        self.metadata = dict(context.invocation_metadata() or ())
        self.seconds_left = context.time_remaining()
        if self.num_failures > 0:
            self.num_failures -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet", (("grpc-retry-pushback-ms", "1"),))
        if self.refusal:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, self.refusal)
        if request.model != self._name:
            await self._fail(request, context)
        yield inference_pb2.GenerateResponse(delta=inference_pb2.Delta(text=request.text[:1], token_ids=[7]))
        if self.release is not None:
            await self.release.wait()
        if request.text == "break":
            error = error_json("The worker is lost.", "server_error", "", "")
            context.set_trailing_metadata((("quire-error", error),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "The worker is lost.")
        yield inference_pb2.GenerateResponse(delta=inference_pb2.Delta(text=request.text[1:]))
        yield inference_pb2.GenerateResponse(final=inference_pb2.Final(usage=inference_pb2.Usage(prompt_tokens=3)))

    async def Chat(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        await self._fail(request, context)
        yield

    async def Embed(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        await self._fail(request, context)
        yield

    async def Score(self, request: Any, context: Context) -> Any:  # noqa: N802
        await self._fail(request, context)

    async def Tokenize(self, request: Any, context: Context) -> Any:  # noqa: N802
        await self._fail(request, context)

    async def Detokenize(self, request: Any, context: Context) -> Any:  # noqa: N802
        await self._fail(request, context)

    async def _fail(self, request: Any, context: Context) -> NoReturn:
        message = f"no model {request.model}"
        error = error_json(message, "invalid_request_error", "model", "model_not_found")
        details = details_metadata(ApiError(ErrorKind.MODEL_NOT_FOUND, message, "model"))
        context.set_trailing_metadata((("quire-error", error), *details))
        await context.abort(grpc.StatusCode.NOT_FOUND, message)


def aborting(code: grpc.StatusCode, message: str, *trailers: tuple[str, str]) -> Script:
    async def script(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        context.set_trailing_metadata(trailers)
        await context.abort(code, message)
        yield body("")

    return script


def waiting_for(release: Awaitable[Any], first: HttpBody, then: HttpBody) -> Script:
    """The second message is sent only once `release` is done."""

    async def script(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        yield first
        await release
        yield then

    return script


async def main(address: str, name: str) -> None:
    """A router in a process of its own, to be killed: it says on standard output that it is up, then a line per POST,
    and finishes none of them."""
    router = FakeRouter(name)

    async def script(request: HttpBody, context: Context) -> AsyncIterator[HttpBody]:
        if request.data == b'{"stream": true}':
            yield event("first")
        # Not before that was sent: a call that brought nothing yet would be answered by another router.
        print("called", flush=True)
        await asyncio.Event().wait()

    router.script = script
    await router.start(address)
    print("up", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
