"""quire.openai.v1.OpenAIService: OpenAI's HTTP API, behind Envoy's transcoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from google.api.httpbody_pb2 import HttpBody
from prometheus_client import CollectorRegistry, generate_latest

from quire.openai.v1 import openai_pb2
from services.router.apis.anthropic import ANTHROPIC_VERSION_HEADER, anthropic_card, anthropic_error, anthropic_list
from services.router.apis.openai.chat_batch import ChatCompletionBatchRequest
from services.router.apis.openai.chat_completions import ChatCompletionRequest
from services.router.apis.openai.chat_writer import ChatCompletionWriter
from services.router.apis.openai.classify import ClassificationService, ClassifyBody
from services.router.apis.openai.cohere import CohereEmbedBody, CohereService
from services.router.apis.openai.completions import CompletionRequest, CompletionService
from services.router.apis.openai.embeddings import EmbeddingBody, EmbeddingService
from services.router.apis.openai.invocations import Invoked, invoked
from services.router.apis.openai.json import AnswerHead
from services.router.apis.openai.scoring import RerankBody, ScoreBody, ScoringService
from services.router.apis.openai.tokens import DetokenizeRequest, TokenizeRequest, tokenizer_info
from services.router.apis.responses import (
    InputTokensBody,
    ResponseBody,
    ResponseObject,
    ResponseWriter,
    response_not_found,
)
from services.router.dispatch import Placement
from services.router.errors import not_ready
from services.router.http import (
    JSON,
    Body,
    ChatService,
    Items,
    answer_all,
    dump,
    in_pieces,
    parse_with,
    parsing_work,
    prepare_all,
    read_body,
    texts_of,
    write_pieces,
)
from services.router.metrics import RequestMetrics
from services.router.model import ServedModel
from services.router.prompt import check_detokenized
from services.router.rpc import Calls, Prepared, errors_for, metadata_of, public
from services.router.text import TextThreads
from shared.version import version

T = TypeVar("T", bound=Body)


@dataclass(frozen=True, slots=True)
class OpenAIServicer:
    calls: Calls
    placement: Placement
    chats: ChatService
    completions: CompletionService
    embeddings: EmbeddingService
    scores: ScoringService
    classes: ClassificationService
    cohere: CohereService
    metrics: RequestMetrics
    registry: CollectorRegistry
    threads: TextThreads
    max_n: int

    async def CreateChatCompletion(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        data = request.data
        body, work = await self._parse(data, ChatCompletionRequest), parsing_work(data)
        await self.threads.run(work, lambda: body.check(self.max_n))
        self.metrics.ignored_fields["chat.completions"] += body.num_ignored_fields

        def writer(model: ServedModel) -> ChatCompletionWriter:
            return ChatCompletionWriter(AnswerHead.new("chatcmpl", model), body.style)

        chat = await self.threads.run(work, body.to_chat)
        return await self.chats.answer(chat, context, writer, stream=bool(body.stream))

    async def CreateChatCompletionBatch(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        data = request.data
        body = await self._parse(data, ChatCompletionBatchRequest)
        work = parsing_work(data) + body.translation_work
        await self.threads.run(work, lambda: body.check(self.max_n))
        self.metrics.ignored_fields["chat.completions.batch"] += body.num_ignored_fields
        model = await self.placement.models.find(body.model)
        body.check_size(model.info.max_model_len)
        chats = await self.threads.run(work, body.to_chats)
        self.chats.generator.check_number(len(chats), "messages")
        turns = await prepare_all(self.chats, chats, model, context)
        writer = ChatCompletionWriter(AnswerHead.new("chatcmpl", model), body.style)

        async def answer() -> None:
            messages, usage = await answer_all(self.chats, turns)
            await write_pieces(self.calls, context, in_pieces(writer.batch(messages, usage)))

        return Prepared(answer)

    async def CreateInvocation(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        methods = {
            Invoked.CHAT: self.CreateChatCompletion,
            Invoked.COMPLETION: self.CreateCompletion,
            Invoked.EMBEDDING: self.CreateEmbedding,
            Invoked.CLASSIFICATION: self.CreateClassification,
            Invoked.RERANK: self.CreateRerank,
            Invoked.SCORE: self.CreateScore,
        }
        api, name = await parse_with(self.threads, request.data, invoked)
        # If `model` is not a string, the method below refuses it.
        if api is Invoked.EMBEDDING and (name is None or isinstance(name, str)):
            model = await self.placement.models.find(name)
            if model.info.classifier is not None:
                api = Invoked.CLASSIFICATION
        return await methods[api](request, context)

    async def CreateCompletion(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        data = request.data
        body = await self._parse(data, CompletionRequest)
        await self.threads.run(parsing_work(data), lambda: body.check(self.max_n))
        self.metrics.ignored_fields["completions"] += body.num_ignored_fields
        return await self.completions.answer(body, context)

    async def CreateResponse(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        data = request.data
        body, work = await self._parse(data, ResponseBody), parsing_work(data)
        await self.threads.run(work, body.check)
        self.metrics.ignored_fields["responses"] += body.num_ignored_fields
        chat = await self.threads.run(work, body.to_chat)

        def writer(model: ServedModel) -> ResponseWriter:
            return ResponseWriter(ResponseObject(body, chat.options.sampling, model))

        return await self.chats.answer(chat, context, writer, stream=bool(body.stream))

    async def CountInputTokens(self, request: HttpBody, context: Any) -> HttpBody:  # noqa: N802
        data = request.data
        body, work = await self._parse(data, InputTokensBody), parsing_work(data)
        await self.threads.run(work, body.check)
        self.metrics.ignored_fields["responses.input_tokens"] += body.num_ignored_fields
        chat = await self.threads.run(work, body.to_chat)
        prompt = await self.chats.prompt(chat, await self.placement.models.find(chat.model))
        answer = {"object": "response.input_tokens", "input_tokens": len(prompt)}
        return HttpBody(content_type=JSON, data=dump(answer))

    async def GetResponse(self, request: openai_pb2.GetResponseRequest, context: Any) -> HttpBody:  # noqa: N802
        raise response_not_found(request.response_id)

    async def CreateEmbedding(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        data = request.data
        body, work = await self._parse(data, EmbeddingBody), parsing_work(data)
        messages = await self.threads.run(work, body.checked_messages)
        self.metrics.ignored_fields["embeddings"] += body.num_ignored_fields
        return await self.embeddings.answer(body, messages, context)

    async def CreateScore(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        body = await self._parse(request.data, ScoreBody)
        self.metrics.ignored_fields["score"] += body.num_ignored_fields
        return await self.scores.score(body, context)

    async def CreateRerank(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        body = await self._parse(request.data, RerankBody)
        self.metrics.ignored_fields["rerank"] += body.num_ignored_fields
        return await self.scores.rerank(body, context)

    async def CreateClassification(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        data = request.data
        body, work = await self._parse(data, ClassifyBody), parsing_work(data)
        messages = await self.threads.run(work, body.checked_messages)
        self.metrics.ignored_fields["classify"] += body.num_ignored_fields
        return await self.classes.answer(body, messages, context)

    async def CreateCohereEmbedding(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        data = request.data
        body = await self._parse(data, CohereEmbedBody)
        await self.threads.run(parsing_work(data), body.check)
        self.metrics.ignored_fields["cohere.embed"] += body.num_ignored_fields
        return await self.cohere.embed(body, context)

    @errors_for(ANTHROPIC_VERSION_HEADER, anthropic_error)
    async def ListModels(self, request: openai_pb2.ListModelsRequest, context: Any) -> HttpBody:  # noqa: N802
        listed = await self.placement.models.listed()
        answer: dict[str, Any]
        if metadata_of(context, ANTHROPIC_VERSION_HEADER):
            limit = request.limit if request.HasField("limit") else None
            cards = [anthropic_card(entry.model, entry.name) for entry in listed]
            answer = anthropic_list(cards, limit, request.after_id, request.before_id)
        else:
            answer = {"object": "list", "data": [_model_card(entry.model, entry.name) for entry in listed]}
        return HttpBody(content_type=JSON, data=dump(answer))

    @errors_for(ANTHROPIC_VERSION_HEADER, anthropic_error)
    async def GetModel(self, request: openai_pb2.GetModelRequest, context: Any) -> HttpBody:  # noqa: N802
        if not request.model:
            raise self.placement.models.not_found(request.model)
        model = await self.placement.models.find(request.model, may_be_away=False)
        card = anthropic_card if metadata_of(context, ANTHROPIC_VERSION_HEADER) else _model_card
        return HttpBody(content_type=JSON, data=dump(card(model, request.model)))

    async def Tokenize(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        data = request.data
        body, work = await self._parse(data, TokenizeRequest), parsing_work(data)
        await self.threads.run(work, body.check)
        self.metrics.ignored_fields["tokenize"] += body.num_ignored_fields
        model = await self.placement.models.find(body.model)
        if body.prompt is None:
            tokens = await self.chats.prompt(await self.threads.run(work, body.to_chat), model)
        else:
            (tokens,) = await model.tokenizer.encode([body.prompt], body.add_special_tokens is not False, ["prompt"])
        vocabulary = model.tokenizer.vocabulary
        answer: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": model.info.max_model_len,
            "tokens": tokens,
            "token_strs": Items(map(vocabulary.token_name, tokens)) if body.return_token_strs else None,
        }
        return self._writing(context, answer)

    async def Detokenize(self, request: HttpBody, context: Any) -> Prepared:  # noqa: N802
        body = await self._parse(request.data, DetokenizeRequest)
        self.metrics.ignored_fields["detokenize"] += body.num_ignored_fields
        model = await self.placement.models.find(body.model)
        await self.threads.run(len(body.tokens), lambda: check_detokenized(model, body.tokens, "tokens"))
        (prompt,) = await model.tokenizer.decode([body.tokens])
        return self._writing(context, {"prompt": prompt})

    async def GetTokenizerInfo(  # noqa: N802
        self, request: openai_pb2.GetTokenizerInfoRequest, context: Any
    ) -> Prepared:
        model = await self.placement.models.find(request.model or None)
        return self._writing(context, tokenizer_info(model))

    async def ResetPrefixCache(self, request: HttpBody, context: Any) -> HttpBody:  # noqa: N802
        await self.placement.reset_prefix_caches()
        return HttpBody(content_type=JSON, data=b"{}")

    @public
    async def GetHealth(self, request: openai_pb2.GetHealthRequest, context: Any) -> HttpBody:  # noqa: N802
        if not self.placement.is_ready:
            raise not_ready("No scheduler is ready.")
        return HttpBody(content_type=JSON, data=b'{"status":"ok"}')

    @public
    async def GetPing(self, request: HttpBody, context: Any) -> HttpBody:  # noqa: N802
        if not self.placement.is_ready:
            raise not_ready("No scheduler is ready.")
        return HttpBody(content_type=JSON, data=b'{"status":"ok"}')

    async def GetVersion(self, request: openai_pb2.GetVersionRequest, context: Any) -> HttpBody:  # noqa: N802
        return HttpBody(content_type=JSON, data=dump({"version": version()}))

    @public
    async def GetMetrics(self, request: openai_pb2.GetMetricsRequest, context: Any) -> HttpBody:  # noqa: N802
        return HttpBody(content_type="text/plain; version=0.0.4; charset=utf-8", data=generate_latest(self.registry))

    def _writing(self, context: Any, answer: dict[str, Any]) -> Prepared:
        return Prepared(lambda: write_pieces(self.calls, context, in_pieces(texts_of(answer))))

    async def _parse(self, data: bytes, schema: type[T]) -> T:
        """Parses and validates a body. Raises ApiError."""
        return await read_body(self.threads, data, schema)


def _model_card(model: ServedModel, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "quire",
        "root": model.info.name,
        "parent": None,
        "max_model_len": model.info.max_model_len,
        "tasks": model.info.tasks,
    }
