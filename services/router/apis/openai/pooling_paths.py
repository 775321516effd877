"""The operations of OpenAI's, Cohere's and vLLM's APIs for embeddings, classes, scores and rankings, for the OpenAPI
document. Some operations have several paths, as in vLLM."""

from __future__ import annotations

from services.router.apis.openai.classify import ClassifyBody
from services.router.apis.openai.cohere import CohereEmbedBody
from services.router.apis.openai.embeddings import EmbeddingBody
from services.router.apis.openai.pooling_replies import (
    Classification,
    CohereEmbedding,
    EmbeddingList,
    Ranking,
    ScoreList,
)
from services.router.apis.openai.scoring import RerankBody, ScoreBody
from services.router.http import Example, Operation

_EMBEDDINGS = "Embeddings"
_MODEL = "quire-chat"
_TEXTS = ["It rains in Bonn.", "The sum is twelve."]

POOLING_OPERATIONS = (
    Operation(
        "POST", "/v1/embeddings", "createEmbedding", _EMBEDDINGS, "Embeds texts",
        "OpenAI's embeddings, with vLLM's additional parameters. Give either `input` or vLLM's `messages`. Unknown "
        "fields are ignored.",
        body=EmbeddingBody, reply=EmbeddingList,
        examples=(
            Example("Two texts", {"model": _MODEL, "input": _TEXTS}),
            Example("A conversation", {"model": _MODEL, "messages": [{"role": "user", "content": "Is it wet?"}]}),
            Example("Token ids, in base64", {"model": _MODEL, "input": [5, 6, 7], "encoding_format": "base64"}),
        ),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/v2/embed", "createCohereEmbedding", _EMBEDDINGS, "Embeds texts",
        "Cohere's embeddings API, version 2, for texts only. Errors have OpenAI's shape. Unknown fields are ignored.",
        body=CohereEmbedBody, reply=CohereEmbedding,
        examples=(
            Example("Two texts", {"model": _MODEL, "texts": _TEXTS, "input_type": "search_document"}),
            Example("Two encodings", {"model": _MODEL, "texts": _TEXTS, "embedding_types": ["float", "ubinary"]}),
        ),
        names_model=True, may_overload=True,
    ),
    *(
        Operation(
            "POST", path, name, _EMBEDDINGS, "Scores the similarity of texts",
            "Compares one text with each of several texts, or two lists of equal length pair by pair. A cross-encoder "
            "scores each pair; other models embed each text, and the score is the cosine.",
            body=ScoreBody, reply=ScoreList,
            examples=(Example("One text with two", {"model": _MODEL, "text_1": "Is it wet?", "text_2": _TEXTS}),),
            names_model=True, may_overload=True,
        )
        for path, name in (("/v1/score", "createScore"), ("/score", "createScoreToo"))
    ),
    *(
        Operation(
            "POST", path, name, _EMBEDDINGS, "Classifies texts",
            "Returns the probabilities of a classifier's labels for each input. vLLM's call. Give either `input` or "
            "`messages`.",
            body=ClassifyBody, reply=Classification,
            examples=(Example("Two texts", {"model": _MODEL, "input": _TEXTS}),),
            names_model=True, may_overload=True,
        )
        for path, name in (("/classify", "createClassification"), ("/v1/classify", "createClassificationToo"))
    ),
    *(
        Operation(
            "POST", path, name, _EMBEDDINGS, "Ranks documents by their similarity to a query",
            body=RerankBody, reply=Ranking,
            examples=(
                Example("The best", {"model": _MODEL, "query": "Is it wet?", "documents": _TEXTS, "top_n": 1}),
            ),
            names_model=True, may_overload=True,
        )
        for path, name in (
            ("/v1/rerank", "createRerank"), ("/rerank", "createRerankToo"), ("/v2/rerank", "createRerankAsCohere"),
        )
    ),
)  # fmt: skip
