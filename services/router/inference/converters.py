"""Between quire.inference.v1 and the router's own values."""

from __future__ import annotations

from typing import Any

from quire.inference.v1 import inference_pb2, sampling_pb2
from services.router.calls import Caller
from services.router.chat.request import ChatRequest
from services.router.converters import pooling_from_proto, sampling_from_proto, stop_from_proto
from services.router.embedding.inputs import MAX_INPUTS, InputOptions, check_token_inputs, embedding_of, encode_texts
from services.router.embedding.request import EmbeddingRequest
from services.router.errors import invalid, too_many
from services.router.generation import ChoiceDelta, Usage
from services.router.model import ServedModel
from services.router.options import GenerationOptions
from services.router.prompts import MAX_MESSAGES
from services.router.sampling import check_ranges, check_stop_strings
from services.router.submission import FinishReason, TokenLogprob

_FINISH_REASONS = {
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
}
_OPTIONS = "options."
MAX_TOKENS_PARAM = f"{_OPTIONS}stop.max_tokens"


def options_from_proto(options: inference_pb2.GenerationOptions, max_n: int) -> GenerationOptions:
    """Raises ApiError where a value is out of range."""
    stop = stop_from_proto(options.stop)
    if stop.max_tokens == 0:
        raise invalid("Invalid 'options.stop.max_tokens': expected at least 1, but got 0.", "options.stop.max_tokens")
    stop_strings = tuple(options.stop_strings)
    check_stop_strings(stop_strings, "options.stop_strings")
    n = options.n if options.HasField("n") else 1
    if not 1 <= n <= max_n:
        raise invalid(f"Invalid 'options.n': expected a value from 1 to {max_n}, but got {n}.", "options.n")
    return GenerationOptions(
        sampling=check_ranges(sampling_from_proto(options.sampling), f"{_OPTIONS}sampling."),
        stop=stop,
        stop_strings=stop_strings,
        n=n,
        cache_salt=options.cache_salt,
        priority=options.priority,
        path=_OPTIONS,
    )


def chat_from_proto(request: inference_pb2.ChatRequest, max_n: int) -> ChatRequest:
    """Raises ApiError where a value is out of range."""
    return ChatRequest(
        model=request.model or None,
        messages=messages_from_proto(request.messages),
        options=options_from_proto(request.options, max_n),
        max_tokens_param=MAX_TOKENS_PARAM,
    )


def messages_from_proto(messages: Any) -> list[dict[str, Any]]:
    """As chat templates expect them. Raises ApiError where there are none or too many, or one has no role."""
    if not messages:
        raise invalid("Invalid 'messages': it must not be empty.", "messages", "empty_array")
    if len(messages) > MAX_MESSAGES:
        raise too_many("messages", MAX_MESSAGES, len(messages))
    for index, message in enumerate(messages):
        if not message.role:
            raise invalid(f"Missing required parameter: 'messages[{index}].role'.", f"messages[{index}].role")
    return [{"role": message.role, "content": message.content} for message in messages]


async def embedding_from_proto(
    request: inference_pb2.EmbedRequest, model: ServedModel, caller: Caller, traceparent: str
) -> EmbeddingRequest:
    """Raises ApiError where a value is out of range, an input too long, or the model gives no such embeddings."""
    if not 1 <= len(request.inputs) <= MAX_INPUTS:
        raise invalid(
            f"Invalid 'inputs': expected at least 1 and at most {MAX_INPUTS}, but got {len(request.inputs)}.", "inputs"
        )
    kinds = {given.WhichOneof("input") for given in request.inputs}
    if len(kinds) > 1 or None in kinds:
        raise invalid("Invalid 'inputs': expected all of them to be texts, or all token ids.", "inputs")
    options = InputOptions(
        truncate_prompt_tokens=request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else None
    )
    embedding, pooling = embedding_of(model), pooling_from_proto(request.pooling)
    pooling.check(embedding, "pooling.dimensions")
    names = [f"inputs[{index}]" for index in range(len(request.inputs))]
    if kinds == {"text"}:
        prompts = await encode_texts(model, [given.text for given in request.inputs], names, options)
    else:
        prompts = check_token_inputs(model, [list(given.token_ids.ids) for given in request.inputs], names, options)
    return EmbeddingRequest.of(
        model, caller, traceparent, prompts, pooling, cache_salt=request.cache_salt, priority=request.priority
    )


def delta_to_proto(delta: ChoiceDelta) -> inference_pb2.Delta:
    message = inference_pb2.Delta(choice_index=delta.index, text=delta.text, token_ids=delta.token_ids)
    if delta.logprobs:
        message.logprobs.extend(_logprob_to_proto(entry) for entry in delta.logprobs)
    if delta.finish_reason is not None:
        message.finish_reason = _FINISH_REASONS[delta.finish_reason]
    return message


def final_to_proto(usage: Usage) -> inference_pb2.Final:
    return inference_pb2.Final(
        usage=inference_pb2.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        )
    )


def _logprob_to_proto(entry: TokenLogprob) -> inference_pb2.TokenLogprob:
    return inference_pb2.TokenLogprob(
        token_id=entry.token_id,
        logprob=entry.logprob,
        top=[inference_pb2.TopLogprob(token_id=token_id, logprob=logprob) for token_id, logprob in entry.top],
    )
