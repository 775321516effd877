"""/v1/embeddings: its body, the tokenization of its inputs, and its answer."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from services.router.apis.openai.input_body import InputBody
from services.router.apis.openai.pooling_body import usage_of
from services.router.dispatch import Placement
from services.router.embedding import Embedder, EmbeddingRequest, embedding_of, floats_of, prompt_for
from services.router.generation import Tracing
from services.router.http import array, dumps, in_pieces, write_pieces
from services.router.parameters import PoolingParams
from services.router.rpc import Calls, Prepared, caller_of


class EmbeddingBody(InputBody):
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **InputBody.not_built,
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
    }

    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Encoding of the vectors: `float` (default) or `base64` (float32, little-endian)."
    )
    dimensions: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="Number of values to keep of each vector, if the model was trained for shorter vectors.",
    )
    normalize: bool | None = Field(
        None, description="Whether vectors are scaled to length 1. Default: the model's own setting."
    )
    use_activation: bool | None = Field(None, description="vLLM's newer name of `normalize`.")


@dataclass(frozen=True, slots=True)
class EmbeddingService:
    placement: Placement
    calls: Calls
    embedder: Embedder
    tracing: Tracing

    async def answer(self, body: EmbeddingBody, messages: list[dict[str, Any]], context: Any) -> Prepared:
        """Prepares the answer. `messages`: result of `checked_messages`. Raises ApiError."""
        caller = caller_of(context)
        model = await self.placement.models.find(body.model)
        with self.tracing.request("embeddings", model.info.name, caller) as span:
            normalize = body.use_activation if body.normalize is None else body.normalize
            pooling = PoolingParams(body.dimensions, normalize)
            embedding = embedding_of(model)
            pooling.check(embedding, "dimensions")
            prompts = await body.encode(model, messages, prefix=prompt_for(embedding, None))
            request = EmbeddingRequest(
                model, caller, span.traceparent, prompts, pooling,
                cache_salt=body.cache_salt or "", priority=body.priority or 0,
            )  # fmt: skip
            return span.prepared(self._answer, request, context, in_base64=body.encoding_format == "base64")

    async def _answer(self, request: EmbeddingRequest, context: Any, *, in_base64: bool) -> None:
        vectors = await self.embedder.all_vectors(request)
        texts = _texts(request.model.info.name, vectors, request.num_tokens, in_base64=in_base64)
        await write_pieces(self.calls, context, in_pieces(texts))


def _texts(model: str, vectors: list[bytes], num_tokens: int, *, in_base64: bool) -> Iterator[str]:
    """Yields the answer's JSON, one vector at a time."""
    yield f'{{"id":"embd-{uuid.uuid4().hex}","object":"list","created":{int(time.time())},"data":'
    write = base64_text if in_base64 else floats_text
    yield from array(
        f'{{"object":"embedding","index":{index},"embedding":{write(vector)}}}' for index, vector in enumerate(vectors)
    )
    yield f',"model":{dumps(model)},"usage":{dumps(usage_of(num_tokens))}}}'


def base64_text(vector: bytes) -> str:
    """Returns a vector's JSON: a base64 string of float32 values, little-endian."""
    return f'"{base64.b64encode(vector).decode()}"'


def floats_text(vector: bytes) -> str:
    """Returns a vector's JSON: an array of numbers."""
    return dumps(floats_of(vector).tolist())
