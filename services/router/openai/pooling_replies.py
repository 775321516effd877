"""The answers of /v1/embeddings, /v1/score, /v1/rerank and /v2/embed."""

from __future__ import annotations

import builtins
from typing import Literal

from pydantic import Field

from services.router.openai.replies import Seconds
from services.router.openapi.operation import Reply, may_lack


class PoolingUsage(Reply):
    prompt_tokens: int
    total_tokens: int


class Embedding(Reply):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="A string with `base64`: float32 values, little-endian.")


class EmbeddingList(Reply):
    object: Literal["list"]
    data: list[Embedding] = Field(description="In the order of the inputs.")
    model: str
    usage: PoolingUsage


class Score(Reply):
    index: int
    object: Literal["score"]
    score: float = Field(description="The cosine of the two texts' embeddings.")


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
    index: int = Field(description="Among the documents of the request.")
    document: RankedText = may_lack("Unless `return_documents` is false.")
    relevance_score: float = Field(description="The cosine of its embedding and the query's.")


class Ranking(Reply):
    id: str
    model: str
    usage: PoolingUsage
    results: list[RankedDocument] = Field(description="Those most like the query first.")


class CohereEmbeddings(Reply):
    """By type, vectors in the order of the inputs."""

    float: list[list[builtins.float]] = may_lack("With `float` among the types, or no types.")
    base64: list[str] = may_lack("With `base64`: float32 values, little-endian.")
    binary: list[list[int]] = may_lack("With `binary`: signs, eight to a byte, which is signed.")
    ubinary: list[list[int]] = may_lack("With `ubinary`: signs, eight to a byte.")


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
