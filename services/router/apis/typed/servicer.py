"""quire.inference.v1.InferenceService: the typed API."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from quire.inference.v1 import inference_pb2
from services.router.apis.typed.conversations import chat_from_proto, tokenized_chat_from_proto
from services.router.apis.typed.converters import (
    MAX_TOKENS_PARAM,
    DeltaConverter,
    chat_deltas_to_proto,
    final_to_proto,
    options_from_proto,
    usage_to_proto,
)
from services.router.apis.typed.embedding import embedding_from_proto, scoring_from_proto
from services.router.apis.typed.token_strings import check_text, with_strings
from services.router.apis.typed.whole_choices import whole_choices
from services.router.chat import FormChoice, MessageParser, encode_plan, plan_chat, prepare, with_reasoning
from services.router.columns import ids_to_bytes
from services.router.embedding import Embedder, EmbeddingRequest, Scoring, floats_of
from services.router.errors import invalid
from services.router.generation import (
    GenerationOptions,
    GenerationRequest,
    Generator,
    RequestSpan,
    Tracing,
    Usage,
    bounded,
)
from services.router.model import ServedModel
from services.router.prompt import (
    check_detokenized,
    check_generates,
    check_length,
    check_token_range,
    encode_text,
    output_budget,
)
from services.router.rpc import Caller, Calls, Prepared, caller_of
from shared.placement import chat_key, named_key, prompt_key

_TASKS = {
    "generate": inference_pb2.MODEL_TASK_GENERATE,
    "embed": inference_pb2.MODEL_TASK_EMBED,
    "classify": inference_pb2.MODEL_TASK_CLASSIFY,
}


@dataclass(frozen=True, slots=True)
class InferenceServicer:
    calls: Calls
    generator: Generator
    tracing: Tracing
    forms: FormChoice
    max_n: int
    embedder: Embedder

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Any) -> Prepared:  # noqa: N802
        model = await self._model(request.model, lambda: _key_of_prompt(request))
        caller, options = _caller(request.options, context), options_from_proto(request.options, self.max_n)
        with self.tracing.request("text_completion", model.info.name, caller) as span:
            check_generates(model.info)
            prompt, param = await _prompt(request, model, options)
            params = (param, MAX_TOKENS_PARAM)
            max_tokens = output_budget(model.info, len(prompt), options.stop.max_tokens, params)
            generation_request = await options.request(model, caller, span.traceparent, (prompt,), (max_tokens,))
            told = prompt if request.options.return_prompt_token_ids else ()
            return span.prepared(self._generate, generation_request, span, context, told, whole=request.whole)

    async def Chat(self, request: inference_pb2.ChatRequest, context: Any) -> Prepared:  # noqa: N802
        model = await self._model(request.model, lambda: _key_of_chat(request))
        caller = _caller(request.options, context)
        with self.tracing.request("chat", model.info.name, caller) as span:
            chat = await chat_from_proto(request, model, self.max_n)
            generation_request, parsers = await prepare(chat, model, caller, span.traceparent, self.forms)
            told = generation_request.prompts[0] if request.options.return_prompt_token_ids else ()
            return span.prepared(self._chat, generation_request, parsers, span, context, told)

    async def Embed(self, request: inference_pb2.EmbedRequest, context: Any) -> Prepared:  # noqa: N802
        model = await self._model(request.model)
        caller = _caller(request, context)
        with self.tracing.request("embeddings", model.info.name, caller) as span:
            embedding_request = await embedding_from_proto(request, model, caller, span.traceparent)
            return span.prepared(self._embed, embedding_request, context, tells_ids=request.return_prompt_token_ids)

    async def Score(  # noqa: N802
        self, request: inference_pb2.ScoreRequest, context: Any
    ) -> Prepared:
        model = await self._model(request.model)
        caller = _caller(request, context)
        with self.tracing.request("embeddings", model.info.name, caller) as span:
            scoring = await scoring_from_proto(request, model, caller, span.traceparent)
            return span.prepared(self._score, scoring)

    async def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: Any
    ) -> inference_pb2.TokenizeResponse:
        model = await self._model(request.model)
        threads = model.tokenizer.threads
        param = request.WhichOneof("input")
        match param:
            case "text":
                adds = request.add_special_tokens if request.HasField("add_special_tokens") else True
                (token_ids,) = await model.tokenizer.encode([request.text], adds, ["text"])
            case "chat":
                chat = await tokenized_chat_from_proto(request, model)
                token_ids = await encode_plan(await plan_chat(chat, model, self.forms), model)
            case _:
                raise invalid("Missing required parameter: 'text' or 'chat'.", "text")
        answer = await threads.run(
            len(token_ids),
            lambda: inference_pb2.TokenizeResponse(token_ids=token_ids, max_model_len=model.info.max_model_len),
        )
        if not request.return_token_strs:
            return answer
        name_of = model.tokenizer.vocabulary.token_name
        return await with_strings(answer, "token_strs", name_of, token_ids, threads, param)

    async def Detokenize(  # noqa: N802
        self, request: inference_pb2.DetokenizeRequest, context: Any
    ) -> inference_pb2.DetokenizeResponse:
        model = await self._model(request.model)
        token_ids = list(request.token_ids)
        threads = model.tokenizer.threads
        await threads.run(len(token_ids), lambda: check_detokenized(model, token_ids, "token_ids"))
        if request.each:
            text_of = model.tokenizer.vocabulary.shown_text
            answer = inference_pb2.DetokenizeResponse()
            return await with_strings(answer, "texts", text_of, token_ids, threads, "token_ids")
        (text,) = await model.tokenizer.decode([token_ids])
        check_text(text, "token_ids")
        return inference_pb2.DetokenizeResponse(text=text)

    async def ListModels(  # noqa: N802
        self, request: inference_pb2.ListModelsRequest, context: Any
    ) -> inference_pb2.ListModelsResponse:
        listed = await self.generator.placement.models.listed()
        return inference_pb2.ListModelsResponse(
            models=[
                inference_pb2.Model(
                    name=entry.name,
                    max_model_len=entry.model.info.max_model_len,
                    root=entry.model.info.name,
                    tasks=[_TASKS[task] for task in entry.model.info.tasks],
                    fingerprint=entry.model.fingerprint,
                )
                for entry in listed
            ]
        )

    async def _embed(self, request: EmbeddingRequest, context: Any, *, tells_ids: bool) -> None:
        async with aclosing(self.embedder.embed(request)) as vectors:
            async for index, vector in vectors:
                told = request.prompts[index] if tells_ids else ()
                embedding = inference_pb2.Embedding(index=index, values=floats_of(vector), prompt_token_ids=told)
                await self.calls.write(context, inference_pb2.EmbedResponse(embedding=embedding))
        final = final_to_proto(Usage(request.num_tokens, 0, 0))
        await self.calls.write(context, inference_pb2.EmbedResponse(final=final))

    async def _score(self, scoring: Scoring) -> inference_pb2.ScoreResponse:
        scores = await scoring.scores(self.embedder)
        usage = usage_to_proto(Usage(scoring.request.num_tokens, 0, 0))
        return inference_pb2.ScoreResponse(scores=scores, usage=usage)

    async def _model(self, name: str, key: Callable[[], bytes] | None = None) -> ServedModel:
        """Finds a model. `key`: as in ModelDirectory.find. Raises ApiError."""
        return await self.generator.placement.models.find(name or None, key)

    async def _generate(
        self, request: GenerationRequest, span: RequestSpan, context: Any, told: Sequence[int], *, whole: bool
    ) -> None:
        """Generates and sends an answer. `told`: the prompt's token ids if the answer is to contain them, else empty.
        `whole`: whether to send each choice only after its end."""
        if whole:
            request = bounded(request, MAX_TOKENS_PARAM)
        to_proto = DeltaConverter(request.prompts[0])
        with self.generator.start(request) as generation:
            span.started(request)
            async for deltas in whole_choices(generation.deltas()) if whole else generation.deltas():
                for delta in deltas:
                    message = to_proto(delta)
                    await self.calls.write(context, inference_pb2.GenerateResponse(delta=message))
            span.ended(generation)
            final = final_to_proto(generation.usage, told, generation.timings)
            await self.calls.write(context, inference_pb2.GenerateResponse(final=final))

    async def _chat(
        self,
        request: GenerationRequest,
        parsers: list[MessageParser],
        span: RequestSpan,
        context: Any,
        told: Sequence[int],
    ) -> None:
        to_proto = DeltaConverter(request.prompts[0])
        with self.generator.start(request) as generation:
            span.started(request)
            async for deltas in generation.deltas():
                for delta in deltas:
                    parsed = parsers[delta.index].parse(delta)
                    for message in chat_deltas_to_proto(parsed, to_proto(delta)):
                        await self.calls.write(context, inference_pb2.ChatResponse(delta=message))
            span.ended(generation)
            final = final_to_proto(with_reasoning(generation.usage, parsers), told, generation.timings)
            await self.calls.write(context, inference_pb2.ChatResponse(final=final))


def _key_of_prompt(request: inference_pb2.GenerateRequest) -> bytes:
    """Returns the key that decides which version of a model the request gets, by the beginning of its prompt."""
    salt = request.options.cache_salt
    if request.options.prompt_cache_key:
        return named_key(request.model, request.options.prompt_cache_key)
    if request.WhichOneof("prompt") == "text":
        return chat_key(request.model, salt, (("", request.text),))
    return prompt_key(request.model, salt, ids_to_bytes(request.token_ids.ids[:512]))


def _key_of_chat(request: inference_pb2.ChatRequest) -> bytes:
    """Returns the key that decides which version of a model a chat gets. It is the same for all turns of the chat."""
    if request.options.prompt_cache_key:
        return named_key(request.model, request.options.prompt_cache_key)
    turns = ((message.role, message.content) for message in request.messages)
    return chat_key(request.model, request.options.cache_salt, turns)


async def _prompt(
    request: inference_pb2.GenerateRequest, model: ServedModel, options: GenerationOptions
) -> tuple[list[int], str]:
    """Returns the prompt's token ids, and the name of the request's field with the prompt. Raises ApiError."""
    truncation = options.truncation
    match request.WhichOneof("prompt"):
        case "text":
            param = "text"
            adds = request.options.add_special_tokens if request.options.HasField("add_special_tokens") else True
            if truncation is None:
                prompt = await encode_text(model, request.text, param, add_special_tokens=adds)
            else:
                (prompt,) = await model.tokenizer.encode([request.text], adds, [param])
        case "token_ids":
            prompt, param = list(request.token_ids.ids), "token_ids.ids"
            if truncation is None:
                check_length(model, prompt, param)
            await model.tokenizer.threads.run(len(prompt), lambda: check_token_range(model, prompt, param))
        case _:
            raise invalid("Missing required parameter: 'text' or 'token_ids'.", "text")
    if truncation is not None:
        prompt = truncation.apply(prompt, model.info.max_model_len, options.stop.max_tokens)
    return prompt, param


def _caller(
    options: inference_pb2.GenerationOptions | inference_pb2.EmbedRequest | inference_pb2.ScoreRequest, context: Any
) -> Caller:
    """Returns the caller. The tenant in the request takes precedence over the tenant in the metadata."""
    caller = caller_of(context)
    return dataclasses.replace(caller, tenant=options.tenant or caller.tenant)
