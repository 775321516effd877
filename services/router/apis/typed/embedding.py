"""Conversion of quire.inference.v1's EmbedRequest and ScoreRequest to the router's own types."""

from __future__ import annotations

from dataclasses import replace

from quire.inference.v1 import inference_pb2
from services.router.dispatch import pooling_from_proto
from services.router.embedding import (
    MAX_INPUTS,
    EmbeddingRequest,
    InputOptions,
    Scoring,
    TextPairs,
    check_pairs,
    check_token_inputs,
    embedding_of,
    encode_texts,
    plan_scores,
    prompt_for,
)
from services.router.errors import invalid
from services.router.model import ServedModel
from services.router.rpc import Caller


async def embedding_from_proto(
    request: inference_pb2.EmbedRequest, model: ServedModel, caller: Caller, traceparent: str
) -> EmbeddingRequest:
    """Converts an EmbedRequest. Raises ApiError if a value is invalid, if an input is too long, or if the model does
    not support the requested embeddings."""
    _check_number(len(request.inputs), "inputs")
    kinds = {given.WhichOneof("input") for given in request.inputs}
    if len(kinds) > 1 or None in kinds:
        raise invalid("Invalid 'inputs': expected only texts, or only token ids.", "inputs")
    options = _input_options(request)
    embedding, pooling = embedding_of(model), pooling_from_proto(request.pooling)
    pooling.check(embedding, "pooling.dimensions")
    names = [f"inputs[{index}]" for index in range(len(request.inputs))]
    prefix = prompt_for(embedding, request.input_type if request.HasField("input_type") else None)
    if kinds == {"text"}:
        texts = [given.text for given in request.inputs]
        prompts = await encode_texts(model, texts, names, replace(options, prefix=prefix))
    else:
        given = [list(entry.token_ids.ids) for entry in request.inputs]
        size = sum(map(len, given))
        prompts = await model.tokenizer.threads.run(size, lambda: check_token_inputs(model, given, names, options))
    return EmbeddingRequest(
        model, caller, traceparent, prompts, pooling, cache_salt=request.cache_salt, priority=request.priority
    )


async def scoring_from_proto(
    request: inference_pb2.ScoreRequest, model: ServedModel, caller: Caller, traceparent: str
) -> Scoring:
    """Converts a ScoreRequest. Raises ApiError if a value is invalid, a text is too long, or the model does not score
    texts."""
    for name, given in (("text_1", request.text_1), ("text_2", request.text_2)):
        _check_number(len(given), name)
    check_pairs(request.text_1, request.text_2)
    first, second = list(request.text_1), list(request.text_2)
    names = [f"text_1[{index}]" for index in range(len(first))], [f"text_2[{index}]" for index in range(len(second))]
    return await plan_scores(
        model, caller, traceparent, TextPairs(first, second, names), _input_options(request),
        cache_salt=request.cache_salt, priority=request.priority,
    )  # fmt: skip


def _check_number(given: int, param: str) -> None:
    if not 1 <= given <= MAX_INPUTS:
        message = f"Invalid '{param}': expected at least 1 and at most {MAX_INPUTS} elements, but got {given}."
        raise invalid(message, param)


def _input_options(request: inference_pb2.EmbedRequest | inference_pb2.ScoreRequest) -> InputOptions:
    return InputOptions(
        request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else None,
        request.add_special_tokens if request.HasField("add_special_tokens") else True,
    )
