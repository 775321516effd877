"""Scores of pairs of texts: the cosines of their embeddings, or what a cross-encoder computes of both together
(Nogueira and Cho, Passage Re-ranking with BERT, 2019)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.router.embedding.embedder import Embedder, floats_of
from services.router.embedding.inputs import (
    InputOptions,
    classifier_of,
    embedding_of,
    encode_pairs,
    encode_texts,
)
from services.router.embedding.request import EmbeddingRequest, PairRequest, PooledRequest
from services.router.errors import invalid
from services.router.model import ServedModel
from services.router.parameters import PoolingParams
from services.router.rpc import Caller

# With vectors of length 1, the cosine is the dot product.
UNIT_LENGTH = PoolingParams(normalize=True)
# `threads.run` counts work in characters to tokenize. Multiplying this many bytes of vectors takes as long as
# tokenizing one character.
_VECTOR_BYTES_PER_CHAR = 64


@dataclass(frozen=True, slots=True)
class TextPairs:
    """A single first text is paired with every second text; otherwise texts are paired by position."""

    first: Sequence[str]
    second: Sequence[str]
    names: tuple[Sequence[str], Sequence[str]]  # of the texts of both lists, for error messages


class Scoring(Protocol):
    """A request for the scores of pairs of texts."""

    @property
    def request(self) -> PooledRequest: ...

    async def scores(self, embedder: Embedder) -> list[float]:
        """Returns a score for each second text. Raises ApiError."""
        ...


@dataclass(frozen=True, slots=True)
class CosineScoring:
    """See `Scoring`. Embeds each text by itself."""

    request: EmbeddingRequest
    num_first: int  # the request's prompts are the first texts, then the second texts

    async def scores(self, embedder: Embedder) -> list[float]:
        """See `Scoring`."""
        vectors = await embedder.all_vectors(self.request)
        return await cosines(self.request.model, vectors[: self.num_first], vectors[self.num_first :])


@dataclass(frozen=True, slots=True)
class PairScoring:
    """See `Scoring`. Computes each pair as one sequence."""

    request: PairRequest

    async def scores(self, embedder: Embedder) -> list[float]:
        """See `Scoring`."""
        return [floats_of(vector)[0] for vector in await embedder.all_vectors(self.request)]


async def plan_scores(
    model: ServedModel, caller: Caller, traceparent: str, pairs: TextPairs, options: InputOptions, *,
    activates: bool = True, cache_salt: str = "", priority: int = 0,
) -> Scoring:  # fmt: skip
    """Tokenizes the texts. Raises ApiError if a text is too long, or if the model scores no texts."""
    if model.info.classifier is not None:
        num_labels = len(classifier_of(model).labels)
        if num_labels > 1:
            message = f"The model `{model.info.name}` has {num_labels} labels, and scores need one. Use /classify."
            raise invalid(message, "model")
        template, encoded = await encode_pairs(model, (pairs.first, pairs.second), pairs.names, options)
        return PairScoring(
            PairRequest(
                model, caller, traceparent, template, encoded, activates, cache_salt=cache_salt, priority=priority
            )
        )
    embedding_of(model)
    names = [*pairs.names[0], *pairs.names[1]]
    prompts = await encode_texts(model, [*pairs.first, *pairs.second], names, options)
    return CosineScoring(
        EmbeddingRequest(model, caller, traceparent, prompts, UNIT_LENGTH, cache_salt=cache_salt, priority=priority),
        len(pairs.first),
    )


def check_pairs(first: Sequence[str], second: Sequence[str], params: tuple[str, str] = ("text_1", "text_2")) -> None:
    """Raises ApiError unless `first` has one text, or as many texts as `second`. A single text is paired with every
    text of `second`; otherwise texts are paired by position. `params`: the names of both lists in errors."""
    if len(first) not in (1, len(second)):
        param, other = params
        message = f"Invalid '{param}': expected one text or {len(second)}, as in '{other}', but got {len(first)}."
        raise invalid(message, param)


async def cosines(model: ServedModel, first: list[bytes], second: list[bytes]) -> list[float]:
    """Returns, for each vector of `second`, the cosine with the vector of `first` at the same position, or with the
    only vector of `first`. All vectors must have length 1 (see UNIT_LENGTH)."""

    def work() -> list[float]:
        left, right = [floats_of(vector) for vector in first], [floats_of(vector) for vector in second]
        pairs = zip(left * (len(right) if len(left) == 1 else 1), right, strict=True)
        # Rounding can bring the product of two equal vectors above 1.
        return [min(1.0, max(-1.0, sum(map(operator.mul, a, b)))) for a, b in pairs]

    return await model.tokenizer.threads.run(sum(map(len, second)) // _VECTOR_BYTES_PER_CHAR, work)
