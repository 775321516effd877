"""quire.openai.v1.OpenAIService: OpenAI's HTTP API, as Envoy's transcoder hands it over."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from typing import Any, TypeVar

from google.api.httpbody_pb2 import HttpBody
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel

from quire.openai.v1 import openai_pb2
from services.router.calls import Calls, ClientStalledError, request_id_of, rpc, tenant_of, timeout_of, traceparent_of
from services.router.errors import ApiError, internal, invalid, model_not_found, unavailable
from services.router.generation import GenerationRequest, Generator
from services.router.metrics import RequestMetrics
from services.router.model import ServedModel, output_budget
from services.router.openai import responses
from services.router.openai.requests import (
    DEFAULT_COMPLETION_TOKENS,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    check_messages,
)
from services.router.openai.validation import parse_body
from services.router.prompts import check_length, check_token_range, encode_chat
from services.router.sampling import check_token_ids
from services.router.tokenizer import TextThreads
from services.router.tracing import RequestSpan, Tracing

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=BaseModel)

# To parse so many bytes takes as long as to tokenize one character.
_PARSED_BYTES_PER_CHAR = 32
_JSON = "application/json"
_EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class OpenAIServicer:
    calls: Calls
    generator: Generator
    metrics: RequestMetrics
    tracing: Tracing
    registry: CollectorRegistry
    threads: TextThreads
    max_n: int

    @rpc
    async def CreateChatCompletion(self, request: HttpBody, context: Any) -> None:  # noqa: N802
        self.calls.authenticate(context)
        body = await self._parse(request, ChatCompletionRequest)
        body.check(self.max_n)
        self.metrics.ignored_fields["chat.completions"] += body.num_ignored_fields
        model = await self.generator.placement.model(body.model)
        with self.tracing.request("chat", model.info.name, traceparent_of(context)) as span:
            prompt = await encode_chat(
                model,
                [message.to_template() for message in body.messages],
                add_special_tokens=bool(body.add_special_tokens),
                add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
                continue_final_message=body.continue_final_message,
                template_kwargs=body.chat_template_kwargs,
            )
            limit, limit_param = body.limit
            generation_request = self._generation_request(
                body,
                context,
                span,
                model,
                prompts=(prompt,),
                max_tokens=(output_budget(model.info, len(prompt), limit, ("messages", limit_param)),),
                logprobs=body.num_logprobs,
            )
            vocabulary = model.tokenizer.vocabulary if body.logprobs else None
            response_id, created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
            identity = (response_id, created, model.info.name, model.fingerprint)
            if body.stream:
                stream = responses.ChatStream(*identity, vocabulary, body.include_usage)
                await self._stream(generation_request, span, context, stream, [])
                return
            choices, usage = await self._collect(generation_request, span, [])
            answers = [choice.chat(index, vocabulary) for index, choice in enumerate(choices)]
            data = responses.whole("chat.completion", *identity, answers, usage)
            await self.calls.write(context, HttpBody(content_type=_JSON, data=data))

    @rpc
    async def CreateCompletion(self, request: HttpBody, context: Any) -> None:  # noqa: N802
        self.calls.authenticate(context)
        body = await self._parse(request, CompletionRequest)
        body.check(self.max_n)
        self.metrics.ignored_fields["completions"] += body.num_ignored_fields
        model = await self.generator.placement.model(body.model)
        with self.tracing.request("text_completion", model.info.name, traceparent_of(context)) as span:
            prompts = await self._prompts(body, model)
            generation_request = self._generation_request(
                body,
                context,
                span,
                model,
                prompts=tuple(prompts),
                max_tokens=tuple(_completion_budget(model, prompt, body.max_tokens) for prompt in prompts),
                logprobs=body.logprobs,
            )
            vocabulary = model.tokenizer.vocabulary if body.logprobs is not None else None
            echoes = await _echoes(body, model) if body.echo else []
            response_id, created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
            identity = (response_id, created, model.info.name, model.fingerprint)
            if body.stream:
                stream = responses.CompletionStream(*identity, vocabulary, body.include_usage)
                await self._stream(generation_request, span, context, stream, echoes)
                return
            choices, usage = await self._collect(generation_request, span, echoes)
            answers = [choice.completion(index, vocabulary) for index, choice in enumerate(choices)]
            data = responses.whole("text_completion", *identity, answers, usage)
            await self.calls.write(context, HttpBody(content_type=_JSON, data=data))

    @rpc
    async def ListModels(self, request: openai_pb2.ListModelsRequest, context: Any) -> HttpBody:  # noqa: N802
        self.calls.authenticate(context)
        models = await self.generator.placement.models()
        cards = [_model_card(model, name) for model in models for name in (model.info.name, *model.info.aliases)]
        return HttpBody(content_type=_JSON, data=responses.dump({"object": "list", "data": cards}))

    @rpc
    async def GetModel(self, request: openai_pb2.GetModelRequest, context: Any) -> HttpBody:  # noqa: N802
        self.calls.authenticate(context)
        if not request.model:
            raise model_not_found(request.model)
        model = await self.generator.placement.model(request.model)
        return HttpBody(content_type=_JSON, data=responses.dump(_model_card(model, request.model)))

    @rpc
    async def Tokenize(self, request: HttpBody, context: Any) -> HttpBody:  # noqa: N802
        self.calls.authenticate(context)
        body = await self._parse(request, TokenizeRequest)
        model = await self.generator.placement.model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise invalid("Exactly one of 'prompt' and 'messages' is required.", "prompt")
        if body.messages is not None:
            check_messages(body.messages)
            tokens = await encode_chat(
                model,
                [message.to_template() for message in body.messages],
                add_special_tokens=bool(body.add_special_tokens),
                add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
                continue_final_message=body.continue_final_message,
                template_kwargs=body.chat_template_kwargs,
            )
        else:
            assert body.prompt is not None
            (tokens,) = await model.tokenizer.encode([body.prompt], body.add_special_tokens is not False)
        vocabulary = model.tokenizer.vocabulary
        answer: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": model.info.max_model_len,
            "tokens": tokens,
            "token_strs": [vocabulary.token_name(token) for token in tokens] if body.return_token_strs else None,
        }
        return HttpBody(content_type=_JSON, data=responses.dump(answer))

    @rpc
    async def Detokenize(self, request: HttpBody, context: Any) -> HttpBody:  # noqa: N802
        self.calls.authenticate(context)
        body = await self._parse(request, DetokenizeRequest)
        model = await self.generator.placement.model(body.model)
        check_token_range(model, body.tokens, "tokens")
        (prompt,) = await model.tokenizer.decode([body.tokens])
        return HttpBody(content_type=_JSON, data=responses.dump({"prompt": prompt}))

    @rpc
    async def ResetPrefixCache(self, request: HttpBody, context: Any) -> HttpBody:  # noqa: N802
        self.calls.authenticate(context)
        await self.generator.placement.reset_prefix_caches()
        return HttpBody(content_type=_JSON, data=b"{}")

    @rpc
    async def GetHealth(self, request: openai_pb2.GetHealthRequest, context: Any) -> HttpBody:  # noqa: N802
        if not self.generator.placement.is_ready:
            raise unavailable("No scheduler is ready.")
        return HttpBody(content_type=_JSON, data=b'{"status":"ok"}')

    @rpc
    async def GetMetrics(self, request: openai_pb2.GetMetricsRequest, context: Any) -> HttpBody:  # noqa: N802
        return HttpBody(content_type="text/plain; version=0.0.4; charset=utf-8", data=generate_latest(self.registry))

    async def _parse(self, request: HttpBody, schema: type[T]) -> T:
        """The checked body. Raises ApiError."""
        return await self.threads.run(
            len(request.data) // _PARSED_BYTES_PER_CHAR, lambda: parse_body(request.data, schema)
        )

    def _generation_request(
        self,
        body: ChatCompletionRequest | CompletionRequest,
        context: Any,
        span: RequestSpan,
        model: ServedModel,
        *,
        prompts: tuple[list[int], ...],
        max_tokens: tuple[int, ...],
        logprobs: int | None,
    ) -> GenerationRequest:
        request = GenerationRequest(
            request_id=request_id_of(context),
            model=model,
            prompts=prompts,
            max_tokens=max_tokens,
            sampling=body.sampling_params(logprobs),
            stop=body.stop_conditions(),
            stop_strings=body.stop_strings,
            n=body.n or 1,
            skip_special_tokens=body.skip_special_tokens is not False,
            timeout=timeout_of(context),
            traceparent=span.traceparent,
            cache_salt=body.cache_salt or "",
            priority=body.priority or 0,
            tenant=tenant_of(context),
            affinity=body.affinity(model.info.name),
        )
        check_token_ids(request.sampling, request.stop, model.info.vocab_size)
        return request

    @staticmethod
    async def _prompts(body: CompletionRequest, model: ServedModel) -> list[list[int]]:
        texts, token_prompts = body.texts, body.token_prompts
        for index, text in enumerate(texts):
            check_length(model, text, body.param(index))
        for index, token_ids in enumerate(token_prompts):
            check_length(model, token_ids, body.param(index))
            check_token_range(model, token_ids, body.param(index))
        return token_prompts or await model.tokenizer.encode(texts, body.add_special_tokens is not False)

    async def _stream(
        self,
        request: GenerationRequest,
        span: RequestSpan,
        context: Any,
        stream: responses.ChatStream | responses.CompletionStream,
        echoes: list[str],
    ) -> None:
        """Writes the answer as it comes. An error before the first byte is the call's status, a later one an event."""
        has_begun = False
        unsent_echoes = {
            prompt * request.n + choice: echo for prompt, echo in enumerate(echoes) for choice in range(request.n)
        }
        with self.generator.start(request) as generation:
            span.started(request)
            try:
                async for deltas in generation.deltas():
                    pieces = []
                    for delta in deltas:
                        if delta.index in unsent_echoes:
                            delta.text = unsent_echoes.pop(delta.index) + delta.text
                        pieces.append(stream.events(delta))
                    if data := b"".join(pieces):
                        has_begun = True
                        await self.calls.write(context, HttpBody(content_type=_EVENTS, data=data))
            except ClientStalledError:
                raise
            except Exception as fault:
                if not has_begun or context.done():
                    raise
                error = fault if isinstance(fault, ApiError) else internal()
                if error is not fault:
                    logger.error("a stream failed after it had begun", exc_info=fault)
                generation.close()
                self.calls.count(error)
                await self.calls.write(context, HttpBody(content_type=_EVENTS, data=responses.error_event(error)))
                return
            span.ended(generation)
            await self.calls.write(context, HttpBody(content_type=_EVENTS, data=stream.end(generation.usage)))

    async def _collect(
        self, request: GenerationRequest, span: RequestSpan, echoes: list[str]
    ) -> tuple[list[responses.WholeChoice], Any]:
        num_prompts = len(request.prompts)
        choices = [
            responses.WholeChoice(echoes[prompt] if echoes else "")
            for prompt in range(num_prompts)
            for _ in range(request.n)
        ]
        with self.generator.start(request) as generation:
            span.started(request)
            async for deltas in generation.deltas():
                for delta in deltas:
                    choices[delta.index].add(delta)
            span.ended(generation)
            return choices, generation.usage


def _completion_budget(model: ServedModel, prompt: list[int], max_tokens: int | None) -> int:
    if max_tokens is not None:
        return output_budget(model.info, len(prompt), max_tokens, ("prompt", "max_tokens"))
    return min(DEFAULT_COMPLETION_TOKENS, output_budget(model.info, len(prompt), None, ("prompt", "max_tokens")))


async def _echoes(body: CompletionRequest, model: ServedModel) -> list[str]:
    return body.texts or await model.tokenizer.decode(body.token_prompts, skip_special_tokens=True)


def _model_card(model: ServedModel, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "quire",
        "root": model.info.name,
        "parent": None,
        "max_model_len": model.info.max_model_len,
    }
