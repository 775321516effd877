"""Fields of Cohere's API."""

from __future__ import annotations

from services.router.apis.openai.cohere import CohereEmbedBody, CohereInput, CohereText
from services.router.apis.openai.scoring import RerankBody
from tests.unit.router.client_tables.fields import Fields

TABLE: dict[str, Fields] = {
    "cohere.embed": Fields(
        CohereEmbedBody, CohereEmbedBody, lambda given: {"texts": ["x"]} | given,
        "embedding_types input_type inputs max_tokens model output_dimension priority texts truncate",
        refused={"images": ["x"]},
    ),
    "cohere.embed.input": Fields(
        CohereInput, CohereEmbedBody,
        lambda given: {"inputs": [{"content": [{"type": "text", "text": "x"}]} | given]}, "content",
    ),
    "cohere.embed.text": Fields(
        CohereText, CohereEmbedBody, lambda given: {"inputs": [{"content": [{"type": "text", "text": "x"} | given]}]},
        "text type",
    ),
    "cohere.rerank": Fields(
        RerankBody, RerankBody, lambda given: {"query": "x", "documents": ["y"]} | given,
        "documents model priority query top_n", refused={"max_tokens_per_doc": 8, "relevant_spans": {}},
    ),
}  # fmt: skip
