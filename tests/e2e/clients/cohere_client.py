"""A program with Cohere's client: vectors, a ranking and an error."""

from __future__ import annotations

import json
import sys

import cohere

TEXTS = ["It rains in Bonn.", "The sum is twelve."]


def main(url: str, name: str) -> object:
    client = cohere.ClientV2(api_key="none", base_url=url)
    vectors = client.embed(
        model=name, texts=TEXTS, input_type="search_document", embedding_types=["float", "binary", "base64"]
    ).embeddings
    ranking = client.rerank(model=name, query=TEXTS[1], documents=TEXTS, top_n=1)
    try:
        client.rerank(model=name, query="Is it wet?", documents=TEXTS, top_n=-1)
    except cohere.core.ApiError as error:
        refused = [error.status_code, error.body]
    return {
        "float": vectors.float_,
        "binary": vectors.binary,
        "base64": vectors.base64,
        "ranking": [(result.index, result.relevance_score) for result in ranking.results],
        "refused": refused,
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
