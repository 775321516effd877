"""quire.ollama.v1.OllamaService: Ollama's API, behind Envoy's transcoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.api.httpbody_pb2 import HttpBody

from quire.ollama.v1 import ollama_pb2
from services.router.apis.ollama.chat import ChatBody
from services.router.apis.ollama.embed import EmbedBody, embedded, to_request
from services.router.apis.ollama.generate import GenerateBody
from services.router.apis.ollama.models import ShowBody, card, description, find, find_named, running_card
from services.router.apis.ollama.options import OllamaBody
from services.router.apis.ollama.raw import answer_raw
from services.router.apis.ollama.writer import NDJSON, OllamaWriter, loaded
from services.router.dispatch import Placement
from services.router.embedding import Embedder, EmbeddingRequest
from services.router.errors import invalid
from services.router.http import JSON, ChatService, dump, parsing_work, read_body, write_pieces
from services.router.metrics import RequestMetrics
from services.router.model import ServedModel
from services.router.rpc import Calls, Prepared, caller_of, public
from services.router.text import TextThreads

# Release of Ollama whose API this server follows. Clients check it before they use newer features.
API_VERSION = "0.12.11"


@dataclass(frozen=True, slots=True)
class OllamaServicer:
    calls: Calls
    placement: Placement
    chats: ChatService
    embedder: Embedder
    metrics: RequestMetrics
    threads: TextThreads

    async def Chat(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        data = request.data
        body = await read_body(self.threads, data, ChatBody)
        self.metrics.ignored_fields["ollama.chat"] += body.num_ignored_fields
        name, _ = await find_named(self.placement, body.model)
        if not body.messages:
            return self._loaded(body, context, is_chat=True)

        def writer(model: ServedModel) -> OllamaWriter:
            return _writer(body, model, is_chat=True)

        work = parsing_work(data)
        chat = await self.threads.run(work, lambda: body.to_chat(name))
        return await self.chats.answer(chat, context, writer, stream=body.is_streamed)

    async def Generate(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        data = request.data
        body = await read_body(self.threads, data, GenerateBody)
        body.check()
        self.metrics.ignored_fields["ollama.generate"] += body.num_ignored_fields
        name, model = await find_named(self.placement, body.model)
        if not body.prompt:
            return self._loaded(body, context, is_chat=False)

        def writer(model: ServedModel) -> OllamaWriter:
            return _writer(body, model, is_chat=False)

        if body.raw or model.tokenizer.chat_template is None:
            answers, tracing = self.chats.answers, self.chats.tracing
            return await answer_raw(body, model, answers, tracing, context, writer(model))
        chat = await self.threads.run(parsing_work(data), lambda: body.to_chat(name))
        return await self.chats.answer(chat, context, writer, stream=body.is_streamed)

    async def Embed(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        body = await read_body(self.threads, request.data, EmbedBody)
        self.metrics.ignored_fields["ollama.embed"] += body.num_ignored_fields
        model, caller = await find(self.placement, body.model), caller_of(context)
        with self.chats.tracing.request("embeddings", model.info.name, caller) as span:
            embedding_request = await to_request(body, model, caller, span.traceparent)
            return span.prepared(self._embed, embedding_request, body.model, context)

    async def _embed(self, request: EmbeddingRequest, model: str, context: Any) -> None:
        await write_pieces(self.calls, context, await embedded(request, model, self.embedder))

    async def ShowModel(self, request: HttpBody, context: Any) -> HttpBody:  # noqa: N802
        body = await read_body(self.threads, request.data, ShowBody)
        self.metrics.ignored_fields["ollama.show"] += body.num_ignored_fields
        name = body.model or body.name
        if name is None:
            raise invalid("Missing required parameter: 'model'.", "model", "missing_required_parameter")
        return _json(description(await find(self.placement, name)))

    async def ListModels(self, request: ollama_pb2.ListModelsRequest, context: Any) -> HttpBody:  # noqa: N802
        listed = await self.placement.models.listed()
        return _json({"models": [card(entry.model, entry.name) for entry in listed]})

    async def ListRunningModels(  # noqa: N802
        self, request: ollama_pb2.ListRunningModelsRequest, context: Any
    ) -> HttpBody:
        listed = await self.placement.models.listed()
        return _json({"models": [running_card(entry.model, entry.name) for entry in listed]})

    @public
    async def GetVersion(self, request: ollama_pb2.GetVersionRequest, context: Any) -> HttpBody:  # noqa: N802
        return _json({"version": API_VERSION})

    @public
    async def GetRoot(self, request: ollama_pb2.GetRootRequest, context: Any) -> HttpBody:  # noqa: N802
        return HttpBody(content_type="text/plain; charset=utf-8", data=b"Ollama is running")

    def _loaded(self, body: OllamaBody, context: Any, *, is_chat: bool) -> Prepared:
        """Answers a request without a prompt. Ollama's clients send these requests to load a model, or to unload it
        with a `keep_alive` of 0. This server loads and unloads nothing."""
        reason = "unload" if body.keep_alive in (0, "0", "0s") else "load"
        data = loaded(body.model, is_chat=is_chat, done_reason=reason)
        answer = HttpBody(content_type=NDJSON if body.is_streamed else JSON, data=data)
        return Prepared(lambda: self.calls.write(context, answer))


def _writer(body: OllamaBody, model: ServedModel, *, is_chat: bool) -> OllamaWriter:
    return OllamaWriter(body.model, is_chat=is_chat, vocabulary=model.tokenizer.vocabulary if body.logprobs else None)


def _json(value: object) -> HttpBody:
    return HttpBody(content_type=JSON, data=dump(value))
