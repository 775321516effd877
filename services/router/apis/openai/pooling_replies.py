"""The answers of /v1/embeddings, /v1/score, /v1/rerank, /classify and /v2/embed."""

from __future__ import annotations

import builtins
from typing import Literal

from pydantic import Field

from services.router.http import Reply, Seconds, may_lack


class PoolingUsage(Reply):
    prompt_tokens: int
    total_tokens: int


class Embedding(Reply):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(
        description="The vector; with `base64` a string of float32 values, little-endian."
    )


class EmbeddingList(Reply):
    id: str
    object: Literal["list"]
    created: Seconds
    data: list[Embedding] = Field(description="Embeddings in the order of the inputs.")
    model: str
    usage: PoolingUsage


class Score(Reply):
    index: int
    object: Literal["score"]
    score: float = Field(
        description="Cosine similarity of the two texts' embeddings, or a cross-encoder's score of both."
    )


class ScoreList(Reply):
    id: str
    object: Literal["list"]
    created: Seconds
    model: str
    data: list[Score]
    usage: PoolingUsage


class RankedText(Reply):
    text: str


class RankedDocument(Reply):
    index: int = Field(description="Index of the document in the request.")
    document: RankedText = may_lack("The document; absent if `return_documents` is false.")
    relevance_score: float = Field(
        description="Cosine similarity of the document's embedding and the query's, or a cross-encoder's score of both."
    )


class Ranking(Reply):
    id: str
    model: str
    usage: PoolingUsage
    results: list[RankedDocument] = Field(description="Results, most similar to the query first.")


class Classified(Reply):
    index: int
    label: str = Field(description="The label with the highest score.")
    probs: list[float] = Field(description="The score of each label, in the model's order.")
    num_classes: int


class Classification(Reply):
    id: str
    object: Literal["list"]
    created: Seconds
    model: str
    data: list[Classified] = Field(description="Results in the order of the inputs.")
    usage: PoolingUsage


class CohereEmbeddings(Reply):
    """For each requested encoding: the vectors, in the order of the inputs."""

    float: list[list[builtins.float]] = may_lack(
        "Present if the requested types contain `float`, or if no types are requested."
    )
    base64: list[str] = may_lack("With `base64`: float32 values, little-endian.")
    binary: list[list[int]] = may_lack("With `binary`: one sign bit per value, eight in a signed byte.")
    ubinary: list[list[int]] = may_lack("With `ubinary`: one sign bit per value, eight in an unsigned byte.")


class CohereApiVersion(Reply):
    version: Literal["2"]


class CohereTokens(Reply):
    input_tokens: int


class CohereMeta(Reply):
    api_version: CohereApiVersion
    billed_units: CohereTokens
    tokens: CohereTokens


class CohereEmbedding(Reply):
    id: str
    embeddings: CohereEmbeddings
    texts: list[str]
    meta: CohereMeta
    response_type: Literal["embeddings_by_type"]
