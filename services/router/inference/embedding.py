"""What an EmbedRequest of quire.inference.v1 asks for."""

from __future__ import annotations

from quire.inference.v1 import inference_pb2
from services.router.calls import Caller
from services.router.converters import pooling_from_proto
from services.router.embedding.inputs import MAX_INPUTS, InputOptions, check_token_inputs, embedding_of, encode_texts
from services.router.embedding.request import EmbeddingRequest
from services.router.errors import invalid
from services.router.model import ServedModel


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
