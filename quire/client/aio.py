"""The typed API's client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Unpack

import grpc

from quire.client.channel import CHANNEL_OPTIONS, credentials_metadata
from quire.client.errors import QuireError, StreamCutError, error_from_status
from quire.client.options import (
    ChatOptions,
    EmbedOptions,
    Messages,
    Options,
    ScoreOptions,
    TemplateOptions,
    chat_request,
    embed_request,
    generate_request,
    score_request,
    tokenize_request,
)
from quire.client.results import (
    Delta,
    Embeddings,
    Gatherer,
    Model,
    Result,
    Scores,
    Timings,
    Usage,
    VectorGatherer,
    delta_from_proto,
    model_from_proto,
    timings_from_proto,
    usage_from_proto,
)
from quire.client.retries import Retries
from quire.inference.v1 import inference_pb2, inference_pb2_grpc


class AsyncClient:
    """Asyncio client of a router, or of Envoy in front of routers. Create and use it on one event loop.

    Retries a call, at most `max_retries` times, while the server is unreachable or overloaded. A stream that has
    returned its first token is not retried. A method raises QuireError if its call fails.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout: float | None = None,
        max_retries: int = 4,
    ) -> None:
        """`address`: host:port or unix:/path. `timeout`: seconds per call, retries included; None: no limit."""
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(
            self._channel
        )
        self._metadata = credentials_metadata(api_key)
        self._timeout = timeout
        self._max_retries = max_retries

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def generate(self, prompt: str | Sequence[int], *, model: str = "", **options: Unpack[Options]) -> Result:
        """Continues a prompt, given as text or token ids. `model` can be left out if the server has only one."""
        return await self._generate(generate_request(model, prompt, options, whole=True)).result()

    async def chat(self, messages: Messages, *, model: str = "", **options: Unpack[ChatOptions]) -> Result:
        """Returns the model's answer to a conversation. `messages`: mappings with `role` and `content`."""
        return await self.stream_chat(messages, model=model, **options).result()

    def stream_generate(
        self, prompt: str | Sequence[int], *, model: str = "", **options: Unpack[Options]
    ) -> AsyncStream:
        return self._generate(generate_request(model, prompt, options))

    def stream_chat(self, messages: Messages, *, model: str = "", **options: Unpack[ChatOptions]) -> AsyncStream:
        request = chat_request(model, messages, options)
        return AsyncStream(
            lambda timeout: self._stub.Chat(request, timeout=timeout, metadata=self._metadata), self._retries()
        )

    async def embed(
        self, inputs: Sequence[str] | Sequence[Sequence[int]], *, model: str = "", **options: Unpack[EmbedOptions]
    ) -> Embeddings:
        """Returns a vector for each input. The inputs are either all texts or all lists of token ids."""
        request, retries = embed_request(model, inputs, options), self._retries()
        while True:
            gatherer = VectorGatherer()
            try:
                async for message in self._stub.Embed(request, timeout=retries.timeout(), metadata=self._metadata):
                    gatherer.add(message)
                return gatherer.result()
            except (grpc.aio.AioRpcError, StreamCutError) as raised:
                # A retry after partial results is safe: the same inputs give the same vectors.
                error = raised if isinstance(raised, QuireError) else _error_of(raised)
                await asyncio.sleep(retries.delay(error))

    async def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        model: str = "",
        **options: Unpack[ScoreOptions],
    ) -> Scores:
        """Returns one score for each text of `text_2`. If `text_1` is a single text, all texts of `text_2` are
        compared with it; otherwise each is compared with the text of `text_1` at the same index."""
        response = await self._call(self._stub.Score, score_request(model, text_1, text_2, options))
        return Scores(tuple(response.scores), usage_from_proto(response.usage))

    async def tokenize(
        self,
        text: str | Messages,
        *,
        model: str = "",
        add_special_tokens: bool | None = None,
        **options: Unpack[TemplateOptions],
    ) -> list[int]:
        """Returns the token ids of a text, or of the prompt that the model's chat template renders from a
        conversation."""
        request = tokenize_request(model, text, add_special_tokens, options)
        response = await self._call(self._stub.Tokenize, request)
        return list(response.token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "") -> str:
        request = inference_pb2.DetokenizeRequest(model=model, token_ids=token_ids)
        text: str = (await self._call(self._stub.Detokenize, request)).text
        return text

    async def token_texts(self, token_ids: Sequence[int], *, model: str = "") -> list[str]:
        """Returns the text of each token. If a token is only part of a character, its text is a replacement
        character."""
        request = inference_pb2.DetokenizeRequest(model=model, token_ids=token_ids, each=True)
        response = await self._call(self._stub.Detokenize, request)
        return list(response.texts)

    async def models(self) -> list[Model]:
        response = await self._call(self._stub.ListModels, inference_pb2.ListModelsRequest())
        return [model_from_proto(model) for model in response.models]

    def _generate(self, request: inference_pb2.GenerateRequest) -> AsyncStream:
        return AsyncStream(
            lambda timeout: self._stub.Generate(request, timeout=timeout, metadata=self._metadata), self._retries()
        )

    def _retries(self) -> Retries:
        return Retries(self._max_retries, self._timeout)

    async def _call(self, method: Callable[..., Any], request: Any) -> Any:
        retries = self._retries()
        while True:
            try:
                return await method(request, timeout=retries.timeout(), metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                await asyncio.sleep(retries.delay(_error_of(error)))


class AsyncStream:
    """An answer as a stream of deltas. Iterate over it once. `usage` and `timings` are set when the iteration has
    ended, and so is `prompt_token_ids` if the request asks for it."""

    def __init__(self, start: Callable[[float | None], Any], retries: Retries) -> None:
        self.usage: Usage | None = None
        self.prompt_token_ids: tuple[int, ...] = ()
        self.timings: Timings | None = None
        self._start = start
        self._retries = retries
        self._call: Any = None
        self._is_closed = False

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the stream, and the generation if it is still running."""
        self._is_closed = True
        if self._call is not None:
            self._call.cancel()

    async def result(self) -> Result:
        """Reads the stream to its end and returns the whole answer."""
        gatherer = Gatherer()
        async for delta in self:
            gatherer.add(delta)
        return gatherer.result(self.usage, self.prompt_token_ids, self.timings)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        has_begun = False
        try:
            while self.usage is None and not self._is_closed:
                try:
                    self._call = self._start(self._retries.timeout())
                    async for message in self._call:
                        if message.WhichOneof("event") == "final":
                            self.usage = usage_from_proto(message.final.usage)
                            self.prompt_token_ids = tuple(message.final.prompt_token_ids)
                            self.timings = timings_from_proto(message.final)
                        else:
                            has_begun = True
                            yield delta_from_proto(message.delta)
                    if self.usage is None:
                        raise StreamCutError
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    # grpc raises CancelledError for a call that close() has cancelled, as if the task were cancelled.
                    if self._is_closed and not (task is not None and task.cancelling()):
                        return
                    raise
                except (grpc.aio.AioRpcError, StreamCutError) as raised:
                    if self._is_closed:
                        return
                    error = raised if isinstance(raised, QuireError) else _error_of(raised)
                    if has_begun:
                        raise error from None
                    await asyncio.sleep(self._retries.delay(error))
        finally:
            self.close()


def _error_of(error: grpc.aio.AioRpcError) -> QuireError:
    return error_from_status(error.code(), error.details(), error.trailing_metadata())
