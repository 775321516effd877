"""What the servicers make of the bodies of requests, without schedulers.

The servicers are real. The services that answer chats are not: they only note the converted chat, and write an answer
to it that is always the same, so that fields with an effect on the answer's form are noticed, too.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from google.api.httpbody_pb2 import HttpBody
from prometheus_client import CollectorRegistry

from services.router.apis.anthropic.body import CountTokensBody, MessagesBody
from services.router.apis.anthropic.servicer import AnthropicServicer
from services.router.apis.ollama.chat import ChatBody
from services.router.apis.ollama.embed import EmbedBody
from services.router.apis.ollama.generate import GenerateBody
from services.router.apis.ollama.servicer import OllamaServicer
from services.router.apis.openai.chat_completions import ChatCompletionRequest
from services.router.apis.openai.cohere import CohereEmbedBody, CohereService
from services.router.apis.openai.completions import CompletionRequest, CompletionService
from services.router.apis.openai.embeddings import EmbeddingBody, EmbeddingService
from services.router.apis.openai.scoring import RerankBody, ScoringService
from services.router.apis.openai.servicer import OpenAIServicer
from services.router.apis.responses.body import InputTokensBody, ResponseBody
from services.router.chat.message import EndReason, Message, MessageDelta
from services.router.chat.request import ChatRequest
from services.router.generation.usage import Usage
from services.router.http.answers import Written
from services.router.http.body import Body
from services.router.http.chats import ChatWriter
from services.router.logprobs import TokenLogprob
from services.router.metrics.requests import RequestMetrics
from services.router.model import ModelInfo, ServedModel
from services.router.parameters.pooling import EmbeddingInfo
from services.router.parameters.sampling import SamplingParams
from services.router.text.threads import TextThreads
from services.router.text.tokenizer import Tokenizer
from tests.integration.router.small_tokenizers import byte_level, tokenizer_config

_LOGPROBS = tuple(TokenLogprob(token_id, -0.5, ((token_id, -0.5), (7, -1.5), (8, -2.5))) for token_id in (5, 6))
_DELTA = MessageDelta(0, content="Hi.", reasoning="Hm.", logprobs=_LOGPROBS, end_reason=EndReason.STOP)
_USAGE = Usage(prompt_tokens=10, completion_tokens=2, cached_tokens=6, reasoning_tokens=1)
# Ids, times and durations, which differ between two answers to the same request.
_CHANGING = re.compile(r'[0-9a-f]{32}|\d{10}|\d{4}-\d\d-\d\dT[^"]*|"[a-z_]*duration":\d+')

# By the type of its body: the service and the method for a request.
_METHODS: dict[type[Body], tuple[str, str]] = {
    ChatCompletionRequest: ("openai", "CreateChatCompletion"),
    CompletionRequest: ("openai", "CreateCompletion"),
    EmbeddingBody: ("openai", "CreateEmbedding"),
    ResponseBody: ("openai", "CreateResponse"),
    InputTokensBody: ("openai", "CountInputTokens"),
    RerankBody: ("openai", "CreateRerank"),
    CohereEmbedBody: ("openai", "CreateCohereEmbedding"),
    MessagesBody: ("anthropic", "CreateMessage"),
    CountTokensBody: ("anthropic", "CountTokens"),
    ChatBody: ("ollama", "Chat"),
    GenerateBody: ("ollama", "Generate"),
    EmbedBody: ("ollama", "Embed"),
}


class Converter:
    """Converts requests as the router does. A model of any name is served; it generates and embeds."""

    def __init__(self) -> None:
        threads = TextThreads(1)
        config = json.dumps(tokenizer_config()).encode()
        prompts = {name: f"{name}: " for name in ("query", "document", "classification", "clustering")}
        embedding = EmbeddingInfo(8, is_matryoshka=True, matryoshka_dimensions=(), prompts=prompts)
        info = ModelInfo(
            "m", (), 256, 512, frozenset({2}), SamplingParams(), "", 0, "Fake", "none", embedding=embedding
        )  # fmt: skip
        self._model = ServedModel(info, Tokenizer(byte_level().to_str().encode(), config, threads), 0)
        self._threads = threads
        self._noted: list[Any] = []
        placement: Any = SimpleNamespace(models=SimpleNamespace(find=self._find))
        tracing: Any = SimpleNamespace(request=lambda *_: _Span(self._noted))
        nothing: Any = SimpleNamespace(send=None, placement=placement)
        chats: Any = SimpleNamespace(answer=self._answer, prompt=self._prompt, answers=nothing, tracing=tracing)
        pooled = (placement, nothing, nothing, tracing)
        metrics = RequestMetrics()
        self._servicers: dict[str, Any] = {
            "openai": OpenAIServicer(
                nothing, placement, chats, CompletionService(nothing, nothing, tracing), EmbeddingService(*pooled),
                ScoringService(*pooled), nothing, CohereService(*pooled), metrics, CollectorRegistry(), threads, 128,
            ),
            "anthropic": AnthropicServicer(nothing, placement, chats, metrics, threads),
            "ollama": OllamaServicer(nothing, placement, chats, nothing, metrics, threads),
        }  # fmt: skip

    async def convert(self, request: type[Body], body: dict[str, Any]) -> list[Any]:
        """Returns what the request becomes, for comparisons. Raises ApiError if it is refused."""
        self._noted.clear()
        service, method = _METHODS[request]
        context = SimpleNamespace(time_remaining=lambda: None, invocation_metadata=lambda: ())
        await getattr(self._servicers[service], method)(HttpBody(data=json.dumps(body).encode()), context)
        assert self._noted
        return [value for value in self._noted if value is not context]

    def close(self) -> None:
        self._threads.close()

    async def _find(self, name: str | None, *_: object) -> ServedModel:
        info = dataclasses.replace(self._model.info, name=name or "m")
        return dataclasses.replace(self._model, info=info)

    async def _answer(
        self, chat: ChatRequest, context: object, writer_for: Callable[[ServedModel], ChatWriter], *, stream: bool
    ) -> None:
        writer = writer_for(await self._find(chat.model))
        if stream:
            answer = _joined(writer.events(_DELTA)) + _joined(writer.end(_USAGE))
        else:
            message = Message()
            message.add(_DELTA)
            answer = "".join(writer.whole([message], _USAGE))
        self._noted += [chat, stream, _CHANGING.sub("", answer)]

    async def _prompt(self, chat: ChatRequest, model: ServedModel) -> list[int]:
        self._noted.append(chat)
        return []


class _Span(AbstractContextManager["_Span"]):
    """Stands for a RequestSpan, and notes the arguments of the prepared answer."""

    traceparent = ""

    def __init__(self, noted: list[Any]) -> None:
        self._noted = noted

    def __exit__(self, *_: object) -> None:
        pass

    def prepared(self, answer: object, *args: Any, **kwargs: Any) -> None:
        for value in (*args, *kwargs.values()):
            if hasattr(value, "stream_type"):
                # A writer of answers. Only the end of a stream depends on its style alone.
                self._noted.append(_CHANGING.sub("", _joined(value.end(_USAGE))) if kwargs["stream"] else "")
            elif value is not self:
                self._noted.append(value)


def _joined(written: Written) -> str:
    return (written if isinstance(written, bytes) else b"".join(written)).decode()
