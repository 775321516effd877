"""/v1/score and /v1/rerank, in vLLM's format: similarity of texts, as the cosine of their embeddings or as a
cross-encoder scores them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from services.router.apis.openai.pooling_body import ActivationFields, PoolingBody, Text, TextOrTexts, usage_of
from services.router.dispatch import Placement
from services.router.embedding import (
    MAX_INPUTS,
    Embedder,
    Scoring,
    TextPairs,
    check_pairs,
    plan_scores,
)
from services.router.errors import invalid
from services.router.generation import Tracing
from services.router.http import Items, in_pieces, texts_of, write_pieces
from services.router.rpc import Calls, Prepared, caller_of


class ScoringBody(PoolingBody, ActivationFields):
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {**PoolingBody.not_built, "truncation_side": ("right",)}


class ScoreBody(ScoringBody):
    text_1: TextOrTexts | None = Field(None, description="One text, or as many texts as `text_2` has.")
    text_2: TextOrTexts | None = Field(None, description="Text or texts to compare with `text_1`.")
    queries: TextOrTexts | None = Field(None, description="vLLM's newer name of `text_1`.")
    documents: TextOrTexts | None = Field(None, description="vLLM's newer name of `text_2`.")

    @property
    def params(self) -> tuple[str, str]:
        """The names that the request uses for the two fields with texts: `queries` and `documents`, or the older
        `text_1` and `text_2`."""
        is_newer = self.queries is not None or self.documents is not None
        return ("queries", "documents") if is_newer else ("text_1", "text_2")

    def pair(self) -> tuple[str | list[str], str | list[str]]:
        """Returns the texts of the first and the second field. Raises ApiError if one of them is missing, or if the
        request mixes older and newer names."""
        if self.params[0] == "queries" and (self.text_1 is not None or self.text_2 is not None):
            raise invalid("'queries' and 'documents' are new names of 'text_1' and 'text_2': use one pair.", "queries")
        for param in self.params:
            if getattr(self, param) is None:
                raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
        first, second = (getattr(self, param) for param in self.params)
        return first, second


class RerankBody(ScoringBody):
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **ScoringBody.not_built,
        "max_tokens_per_doc": (0,),
        "relevant_spans": (),
    }

    query: Text = Field(description="Text to compare the documents with.")
    documents: Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS)] = Field(
        description="Texts to rank, at most 2,048."
    )
    top_n: int | None = Field(None, ge=0, lt=2**31, description="Number of best results to return; 0: all.")
    return_documents: bool | None = Field(None, description="If false, the results do not repeat the texts.")


@dataclass(frozen=True, slots=True)
class ScoringService:
    placement: Placement
    calls: Calls
    embedder: Embedder
    tracing: Tracing

    async def score(self, body: ScoreBody, context: Any) -> Prepared:
        """Compares one text with each of several texts, or two lists of equal length pair by pair. Raises ApiError."""
        left, right = body.pair()
        first, second = ([given] if isinstance(given, str) else given for given in (left, right))
        check_pairs(first, second, body.params)
        names = (
            [_name(body.params[0], left, index) for index in range(len(first))],
            [_name(body.params[1], right, index) for index in range(len(second))],
        )
        return await self._prepared(self._score, body, context, TextPairs(first, second, names))

    async def _score(self, scoring: Scoring, context: Any) -> None:
        request, scores = scoring.request, await scoring.scores(self.embedder)
        answer = {
            "id": f"score-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": request.model.info.name,
            "data": Items({"index": index, "object": "score", "score": score} for index, score in enumerate(scores)),
            "usage": usage_of(request.num_tokens),
        }
        await write_pieces(self.calls, context, in_pieces(texts_of(answer)))

    async def rerank(self, body: RerankBody, context: Any) -> Prepared:
        """Ranks documents by their similarity to the query, most similar first. Raises ApiError."""
        documents = body.documents
        names = ["query"], [f"documents[{index}]" for index in range(len(documents))]
        shown = None if body.return_documents is False else documents
        pairs = TextPairs([body.query], documents, names)
        return await self._prepared(self._rerank, body, context, pairs, body.top_n, shown)

    async def _rerank(self, scoring: Scoring, context: Any, top_n: int | None, documents: Sequence[str] | None) -> None:
        """Sends the ranking. `documents`: texts to repeat in the answer, or None."""
        request, scores = scoring.request, await scoring.scores(self.embedder)
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[: top_n or None]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in best]
        if documents is not None:
            for result in results:
                result["document"] = {"text": documents[result["index"]]}
        answer = {
            "id": f"rerank-{uuid.uuid4().hex}",
            "model": request.model.info.name,
            "usage": usage_of(request.num_tokens),
            "results": results,
        }
        await write_pieces(self.calls, context, in_pieces(texts_of(answer)))

    async def _prepared(
        self,
        answer: Callable[..., Awaitable[None]],
        body: ScoringBody,
        context: Any,
        pairs: TextPairs,
        *rest: object,
    ) -> Prepared:
        """Prepares the call: tokenizes the texts. The prepared call runs `answer(scoring, context, *rest)`. Raises
        ApiError."""
        caller = caller_of(context)
        model = await self.placement.models.find(body.model)
        with self.tracing.request("embeddings", model.info.name, caller) as span:
            scoring = await plan_scores(
                model, caller, span.traceparent, pairs, body.input_options,
                activates=body.activates, cache_salt=body.cache_salt or "", priority=body.priority or 0,
            )  # fmt: skip
            return span.prepared(answer, scoring, context, *rest)


def _name(param: str, given: str | list[str], index: int) -> str:
    return param if isinstance(given, str) else f"{param}[{index}]"
