"""/classify, in vLLM's format: the probabilities of a classifier's labels."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from services.router.apis.openai.input_body import InputBody
from services.router.apis.openai.pooling_body import ActivationFields, usage_of
from services.router.dispatch import Placement
from services.router.embedding import ClassificationRequest, Embedder, classifier_of, floats_of
from services.router.errors import too_many
from services.router.generation import Tracing
from services.router.http import Items, in_pieces, texts_of, write_pieces
from services.router.rpc import Calls, Prepared, caller_of

# Scores in one answer: 32 MiB, which the router holds until the last input is classified.
MAX_SCORES = 8_388_608


class ClassifyBody(InputBody, ActivationFields):
    pass


@dataclass(frozen=True, slots=True)
class ClassificationService:
    placement: Placement
    calls: Calls
    embedder: Embedder
    tracing: Tracing

    async def answer(self, body: ClassifyBody, messages: list[dict[str, Any]], context: Any) -> Prepared:
        """Prepares the answer. `messages`: result of `checked_messages`. Raises ApiError."""
        caller = caller_of(context)
        model = await self.placement.models.find(body.model)
        with self.tracing.request("embeddings", model.info.name, caller) as span:
            max_inputs = max(1, MAX_SCORES // len(classifier_of(model).labels))
            prompts = await body.encode(model, messages)
            if len(prompts) > max_inputs:
                raise too_many("input", max_inputs, len(prompts))
            request = ClassificationRequest(
                model, caller, span.traceparent, prompts, body.activates,
                cache_salt=body.cache_salt or "", priority=body.priority or 0,
            )  # fmt: skip
            return span.prepared(self._answer, request, context)

    async def _answer(self, request: ClassificationRequest, context: Any) -> None:
        vectors = await self.embedder.all_vectors(request)
        answer = {
            "id": f"classify-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": request.model.info.name,
            "data": Items(_classes(vectors, classifier_of(request.model).labels)),
            "usage": usage_of(request.num_tokens),
        }
        await write_pieces(self.calls, context, in_pieces(texts_of(answer)))


def _classes(vectors: Sequence[bytes], labels: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the result of each input. `vectors`: the scores of the labels, float32, little-endian."""
    for index, vector in enumerate(vectors):
        scores = floats_of(vector)
        label = labels[max(range(len(scores)), key=scores.__getitem__)]
        yield {"index": index, "label": label, "probs": scores.tolist(), "num_classes": len(scores)}
