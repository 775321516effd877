"""/v1/score and /v1/rerank, in vLLM's form: how alike texts are, as the cosine of their embeddings."""

from __future__ import annotations

import operator
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from google.api.httpbody_pb2 import HttpBody
from pydantic import Field

from services.router.answers import JSON
from services.router.calls import Calls, caller_of
from services.router.embedding.embedder import Embedder, floats_of
from services.router.embedding.inputs import MAX_INPUTS, embedding_of, encode_texts
from services.router.embedding.request import EmbeddingRequest
from services.router.errors import invalid
from services.router.model import ServedModel
from services.router.openai.json import dump
from services.router.openai.pooling_body import PoolingBody, Text, TextOrTexts, usage_of
from services.router.placement import Placement
from services.router.pooling import PoolingParams
from services.router.tracing import Tracing

# A cosine is the product of vectors of length 1.
_POOLING = PoolingParams(normalize=True)
# To multiply so many bytes of vectors takes as long as to tokenize one character.
_VECTOR_BYTES_PER_CHAR = 64


class ScoreBody(PoolingBody):
    text_1: TextOrTexts
    text_2: TextOrTexts


class RerankBody(PoolingBody):
    query: Text
    documents: Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS)]
    # 0: all.
    top_n: int | None = Field(None, ge=0, lt=2**31)


@dataclass(frozen=True, slots=True)
class ScoringService:
    placement: Placement
    calls: Calls
    embedder: Embedder
    tracing: Tracing

    async def score(self, body: ScoreBody, context: Any) -> None:
        """One text against each of some, or as many against as many, pair by pair. Raises ApiError."""
        first = [body.text_1] if isinstance(body.text_1, str) else body.text_1
        second = [body.text_2] if isinstance(body.text_2, str) else body.text_2
        if len(first) not in (1, len(second)):
            message = f"Invalid 'text_1': expected one text or {len(second)}, as in 'text_2', but got {len(first)}."
            raise invalid(message, "text_1")
        names = [_name("text_1", body.text_1, index) for index in range(len(first))]
        names += [_name("text_2", body.text_2, index) for index in range(len(second))]
        model, vectors, num_tokens = await self._embed(body, context, [*first, *second], names)
        scores = await _cosines(model, vectors[: len(first)], vectors[len(first) :])
        answer = {
            "id": f"score-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": model.info.name,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
            "usage": usage_of(num_tokens),
        }
        await self.calls.write(context, HttpBody(content_type=JSON, data=dump(answer)))

    async def rerank(self, body: RerankBody, context: Any) -> None:
        """The documents most like the query, likest first. Raises ApiError."""
        documents = body.documents
        names = ["query", *(f"documents[{index}]" for index in range(len(documents)))]
        model, vectors, num_tokens = await self._embed(body, context, [body.query, *documents], names)
        scores = await _cosines(model, vectors[:1], vectors[1:])
        best = sorted(range(len(documents)), key=lambda index: -scores[index])[: body.top_n or None]
        answer = {
            "id": f"rerank-{uuid.uuid4().hex}",
            "model": model.info.name,
            "usage": usage_of(num_tokens),
            "results": [
                {"index": index, "document": {"text": documents[index]}, "relevance_score": scores[index]}
                for index in best
            ],
        }
        await self.calls.write(context, HttpBody(content_type=JSON, data=dump(answer)))

    async def _embed(
        self, body: PoolingBody, context: Any, texts: Sequence[str], names: Sequence[str]
    ) -> tuple[ServedModel, list[bytes], int]:
        """The model, the texts' vectors, and how many tokens they have."""
        caller = caller_of(context)
        model = await self.placement.model(body.model)
        with self.tracing.request("embeddings", model.info.name, caller.traceparent) as span:
            embedding_of(model)
            prompts = await encode_texts(model, texts, names, body.input_options)
            request = EmbeddingRequest.of(
                model, caller, span.traceparent, prompts, _POOLING,
                cache_salt=body.cache_salt or "", priority=body.priority or 0,
            )  # fmt: skip
            return model, await self.embedder.all_vectors(request), request.num_tokens


async def _cosines(model: ServedModel, first: list[bytes], second: list[bytes]) -> list[float]:
    """Of each of `second` with the one of `first`, or with that at its place."""

    def work() -> list[float]:
        left, right = [floats_of(vector) for vector in first], [floats_of(vector) for vector in second]
        pairs = zip(left * (len(right) if len(left) == 1 else 1), right, strict=True)
        return [sum(map(operator.mul, a, b)) for a, b in pairs]

    return await model.tokenizer.threads.run(sum(map(len, second)) // _VECTOR_BYTES_PER_CHAR, work)


def _name(param: str, given: str | list[str], index: int) -> str:
    return param if isinstance(given, str) else f"{param}[{index}]"
