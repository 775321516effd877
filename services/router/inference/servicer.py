"""quire.inference.v1.InferenceService: the typed API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.inference.v1 import inference_pb2
from services.router.calls import Calls, request_id_of, rpc, tenant_of, timeout_of, traceparent_of
from services.router.errors import invalid
from services.router.generation import GenerationRequest, Generator
from services.router.inference.converters import (
    delta_to_proto,
    final_to_proto,
    messages_from_proto,
    options_from_proto,
)
from services.router.model import ServedModel, output_budget
from services.router.prompts import check_length, check_token_range, encode_chat, encode_text
from services.router.tracing import RequestSpan, Tracing
from shared.placement import chat_key


@dataclass(frozen=True, slots=True)
class InferenceServicer:
    calls: Calls
    generator: Generator
    tracing: Tracing
    max_n: int

    @rpc
    async def Generate(self, request: inference_pb2.GenerateRequest, context: Any) -> None:  # noqa: N802
        self.calls.authenticate(context)
        model = await self._model(request.model)
        with self.tracing.request("text_completion", model.info.name, traceparent_of(context)) as span:
            match request.WhichOneof("prompt"):
                case "text":
                    prompt, param = await encode_text(model, request.text, "text"), "text"
                case "token_ids":
                    prompt, param = list(request.token_ids.ids), "token_ids.ids"
                    check_length(model, prompt, param)
                    check_token_range(model, prompt, param)
                case _:
                    raise invalid("Missing required parameter: 'text' or 'token_ids'.", "text")
            await self._run(request.options, prompt, param, model, span, context, inference_pb2.GenerateResponse)

    @rpc
    async def Chat(self, request: inference_pb2.ChatRequest, context: Any) -> None:  # noqa: N802
        self.calls.authenticate(context)
        model = await self._model(request.model)
        with self.tracing.request("chat", model.info.name, traceparent_of(context)) as span:
            messages = messages_from_proto(request.messages)
            prompt = await encode_chat(model, messages)
            turns = ((message["role"], message["content"]) for message in messages)
            affinity = chat_key(model.info.name, request.options.cache_salt, turns)
            await self._run(
                request.options, prompt, "messages", model, span, context, inference_pb2.ChatResponse, affinity
            )

    @rpc
    async def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: Any
    ) -> inference_pb2.TokenizeResponse:
        self.calls.authenticate(context)
        model = await self._model(request.model)
        given = request.add_special_tokens if request.HasField("add_special_tokens") else None
        match request.WhichOneof("input"):
            case "text":
                (token_ids,) = await model.tokenizer.encode([request.text], given is not False)
            case "chat":
                messages = messages_from_proto(request.chat.messages)
                token_ids = await encode_chat(model, messages, add_special_tokens=bool(given))
            case _:
                raise invalid("Missing required parameter: 'text' or 'chat'.", "text")
        return inference_pb2.TokenizeResponse(token_ids=token_ids, max_model_len=model.info.max_model_len)

    @rpc
    async def Detokenize(  # noqa: N802
        self, request: inference_pb2.DetokenizeRequest, context: Any
    ) -> inference_pb2.DetokenizeResponse:
        self.calls.authenticate(context)
        model = await self._model(request.model)
        token_ids = list(request.token_ids)
        check_token_range(model, token_ids, "token_ids")
        (text,) = await model.tokenizer.decode([token_ids])
        return inference_pb2.DetokenizeResponse(text=text)

    @rpc
    async def ListModels(  # noqa: N802
        self, request: inference_pb2.ListModelsRequest, context: Any
    ) -> inference_pb2.ListModelsResponse:
        self.calls.authenticate(context)
        models = await self.generator.placement.models()
        return inference_pb2.ListModelsResponse(
            models=[
                inference_pb2.Model(name=name, max_model_len=model.info.max_model_len)
                for model in models
                for name in (model.info.name, *model.info.aliases)
            ]
        )

    async def _model(self, name: str) -> ServedModel:
        return await self.generator.placement.model(name or None)

    async def _run(
        self,
        options: inference_pb2.GenerationOptions,
        prompt: list[int],
        param: str,
        model: ServedModel,
        span: RequestSpan,
        context: Any,
        response: type[inference_pb2.GenerateResponse] | type[inference_pb2.ChatResponse],
        affinity: bytes = b"",
    ) -> None:
        sampling, stop, stop_strings, n = options_from_proto(options, model.info.vocab_size, self.max_n)
        request = GenerationRequest(
            request_id=request_id_of(context),
            model=model,
            prompts=(prompt,),
            max_tokens=(output_budget(model.info, len(prompt), stop.max_tokens, (param, "options.stop.max_tokens")),),
            sampling=sampling,
            stop=stop,
            stop_strings=stop_strings,
            n=n,
            timeout=timeout_of(context),
            traceparent=span.traceparent,
            cache_salt=options.cache_salt,
            priority=options.priority,
            tenant=options.tenant or tenant_of(context),
            affinity=affinity,
        )
        with self.generator.start(request) as generation:
            span.started(request)
            async for deltas in generation.deltas():
                for delta in deltas:
                    await self.calls.write(context, response(delta=delta_to_proto(delta)))
            span.ended(generation)
            await self.calls.write(context, response(final=final_to_proto(generation.usage)))
