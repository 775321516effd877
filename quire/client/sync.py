"""The typed API's client for threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

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

R = TypeVar("R")


class Client:
    """Client of a router, or of Envoy in front of routers. Several threads can share a client.

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
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._metadata = credentials_metadata(api_key)
        self._timeout = timeout
        self._max_retries = max_retries

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def generate(self, prompt: str | Sequence[int], *, model: str = "", **options: Unpack[Options]) -> Result:
        """Continues a prompt, given as text or token ids. `model` can be left out if the server has only one."""
        return self._generate(generate_request(model, prompt, options, whole=True)).result()

    def chat(self, messages: Messages, *, model: str = "", **options: Unpack[ChatOptions]) -> Result:
        """Answers a conversation. `messages`: mappings with `role` and `content`."""
        return self.stream_chat(messages, model=model, **options).result()

    def stream_generate(self, prompt: str | Sequence[int], *, model: str = "", **options: Unpack[Options]) -> Stream:
        return self._generate(generate_request(model, prompt, options))

    def stream_chat(self, messages: Messages, *, model: str = "", **options: Unpack[ChatOptions]) -> Stream:
        request = chat_request(model, messages, options)
        return Stream(
            lambda timeout: self._stub.Chat(request, timeout=timeout, metadata=self._metadata), self._retries()
        )

    def embed(
        self, inputs: Sequence[str] | Sequence[Sequence[int]], *, model: str = "", **options: Unpack[EmbedOptions]
    ) -> Embeddings:
        """Returns a vector for each input. The inputs are either all texts or all lists of token ids."""
        request, retries = embed_request(model, inputs, options), self._retries()
        while True:
            gatherer = VectorGatherer()
            try:
                for message in self._stub.Embed(request, timeout=retries.timeout(), metadata=self._metadata):
                    gatherer.add(message)
                return gatherer.result()
            except (grpc.RpcError, StreamCutError) as raised:
                # A retry after partial results is safe: the same inputs give the same vectors.
                error = raised if isinstance(raised, QuireError) else _error_of(raised)
                time.sleep(retries.delay(error))

    def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        model: str = "",
        **options: Unpack[ScoreOptions],
    ) -> Scores:
        """Returns one score for each text of `text_2`. If `text_1` is a single text, all texts of `text_2` are
        compared with it; otherwise each is compared with the text of `text_1` at the same index."""
        response = self._call(self._stub.Score, score_request(model, text_1, text_2, options))
        return Scores(tuple(response.scores), usage_from_proto(response.usage))

    def tokenize(
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
        response = self._call(self._stub.Tokenize, request)
        return list(response.token_ids)

    def detokenize(self, token_ids: Sequence[int], *, model: str = "") -> str:
        request = inference_pb2.DetokenizeRequest(model=model, token_ids=token_ids)
        return self._call(self._stub.Detokenize, request).text

    def token_texts(self, token_ids: Sequence[int], *, model: str = "") -> list[str]:
        """Returns the text of each token. If a token is only part of a character, its text is a replacement
        character."""
        request = inference_pb2.DetokenizeRequest(model=model, token_ids=token_ids, each=True)
        response = self._call(self._stub.Detokenize, request)
        return list(response.texts)

    def models(self) -> list[Model]:
        response = self._call(self._stub.ListModels, inference_pb2.ListModelsRequest())
        return [model_from_proto(model) for model in response.models]

    def _generate(self, request: inference_pb2.GenerateRequest) -> Stream:
        return Stream(
            lambda timeout: self._stub.Generate(request, timeout=timeout, metadata=self._metadata), self._retries()
        )

    def _retries(self) -> Retries:
        return Retries(self._max_retries, self._timeout)

    def _call(self, method: Callable[..., R], request: Any) -> R:
        retries = self._retries()
        while True:
            try:
                return method(request, timeout=retries.timeout(), metadata=self._metadata)
            except grpc.RpcError as error:
                time.sleep(retries.delay(_error_of(error)))


class Stream:
    """An answer as a stream of deltas. Iterate over it once. When the iteration has ended, it has set `usage` and
    `timings`, and also `prompt_token_ids` if the request asks for them."""

    def __init__(self, start: Callable[[float | None], Any], retries: Retries) -> None:
        self.usage: Usage | None = None
        self.prompt_token_ids: tuple[int, ...] = ()
        self.timings: Timings | None = None
        self._start = start
        self._retries = retries
        self._call: Any = None
        self._is_closed = False

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the stream, and the generation if it is still running."""
        self._is_closed = True
        if self._call is not None:
            self._call.cancel()

    def result(self) -> Result:
        """Reads the stream to its end and returns the whole answer."""
        gatherer = Gatherer()
        for delta in self:
            gatherer.add(delta)
        return gatherer.result(self.usage, self.prompt_token_ids, self.timings)

    def __iter__(self) -> Iterator[Delta]:
        has_begun = False
        try:
            while self.usage is None and not self._is_closed:
                try:
                    self._call = self._start(self._retries.timeout())
                    for message in self._call:
                        if message.WhichOneof("event") == "final":
                            self.usage = usage_from_proto(message.final.usage)
                            self.prompt_token_ids = tuple(message.final.prompt_token_ids)
                            self.timings = timings_from_proto(message.final)
                        else:
                            has_begun = True
                            yield delta_from_proto(message.delta)
                    if self.usage is None:
                        raise StreamCutError
                except (grpc.RpcError, StreamCutError) as raised:
                    if self._is_closed:
                        return
                    error = raised if isinstance(raised, QuireError) else _error_of(raised)
                    if has_begun:
                        raise error from None
                    time.sleep(self._retries.delay(error))
        finally:
            self.close()


def _error_of(error: grpc.RpcError) -> QuireError:
    # An error that a stub raises is also a grpc.Call, although its declared type, grpc.RpcError, is not.
    call: Any = error
    return error_from_status(call.code(), call.details(), call.trailing_metadata())
