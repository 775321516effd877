"""A purpose of Cohere's API leads to the prompt that the model has for it, whatever the model calls it."""

from __future__ import annotations

import pytest

from services.router.embedding import prompt_for
from services.router.errors import ApiError
from services.router.parameters import EmbeddingInfo

SEARCH = "task: search result | query: "
# As in the files of published models.
EMBEDDING_GEMMA = {
    "query": SEARCH, "document": "title: none | text: ", "BitextMining": SEARCH,
    "Clustering": "task: clustering | query: ", "Classification": "task: classification | query: ",
    "Retrieval-query": SEARCH, "Retrieval-document": "title: none | text: ",
    "STS": "task: sentence similarity | query: ",
}  # fmt: skip
NOMIC = {
    "search_query": "search_query: ", "search_document": "search_document: ", "classification": "classification: ",
    "clustering": "clustering: ",
}  # fmt: skip
NOMIC_MOE = {"query": "search_query: ", "passage": "search_document: ", "Clustering": "clustering: "}
JINA = {"retrieval.query": "Represent the query: ", "retrieval.passage": "Represent the document: "}
QWEN = {"query": "Instruct: find\nQuery:", "document": ""}
E5_MISTRAL = {"web_search_query": "Instruct: find\nQuery: ", "sts_query": "Instruct: similar\nQuery: "}
STELLA = {"s2p_query": "Instruct: find\nQuery: ", "s2s_query": "Instruct: similar\nQuery: "}


def model(prompts: dict[str, str], default: str = "") -> EmbeddingInfo:
    return EmbeddingInfo(8, False, (), prompts, default)


@pytest.mark.parametrize(
    ("prompts", "query", "document", "classification", "clustering"),
    [
        (EMBEDDING_GEMMA, "query", "document", "Classification", "Clustering"),
        (NOMIC, "search_query", "search_document", "classification", "clustering"),
        (NOMIC_MOE, "query", "passage", None, "Clustering"),
        (JINA, "retrieval.query", "retrieval.passage", None, None),
        (QWEN, "query", "document", None, None),
        (E5_MISTRAL, "web_search_query", None, None, None),
        (STELLA, "s2p_query", None, None, None),
        ({"Retrieval-query": "q: ", "Retrieval-document": "d: "}, "Retrieval-query", "Retrieval-document", None, None),
        ({}, None, None, None, None),
    ],
)
def test_each_purpose_has_the_model_s_prompt_or_none(
    prompts: dict[str, str], query: str | None, document: str | None, classification: str | None, clustering: str | None
) -> None:
    names = {
        "search_query": query, "search_document": document, "classification": classification, "clustering": clustering,
    }  # fmt: skip
    for purpose, name in names.items():
        expected = "" if name is None else prompts[name]
        # The default is not for a purpose that is given, as in sentence-transformers' encode_query.
        assert prompt_for(model(prompts, "default: "), purpose) == expected


def test_cohere_s_own_name_comes_first_and_then_the_exact_case() -> None:
    prompts = {"query": "1", "search_query": "2"}
    assert prompt_for(model(prompts), "search_query") == "2"
    assert prompt_for(model({"QUERY": "1", "Query": "2", "query": "3"}), "search_query") == "3"
    assert prompt_for(model({"QUERY": "1", "Query": "2"}), "search_query") == "1"


def test_without_a_purpose_it_is_the_default() -> None:
    assert prompt_for(model(QWEN), None) == ""
    assert prompt_for(model(QWEN, "text: "), None) == "text: "
    assert prompt_for(model(QWEN, "text: "), "") == ""


def test_the_model_s_own_names_are_purposes_too() -> None:
    assert prompt_for(model(EMBEDDING_GEMMA), "STS") == EMBEDDING_GEMMA["STS"]
    with pytest.raises(ApiError):
        prompt_for(model(EMBEDDING_GEMMA), "sts")


@pytest.mark.parametrize(
    ("input_type", "message"),
    [
        (
            "foo",
            "Invalid 'input_type': 'foo'. Supported values are: 'search_query', 'search_document', 'classification', "
            "'clustering', 'query', 'document'.",
        ),
        ("image", "Invalid 'input_type': 'image' is not supported: this server embeds only text."),
        ("x" * 100, f"Invalid 'input_type': '{'x' * 64}'."),
    ],
)
def test_other_purposes_are_refused(input_type: str, message: str) -> None:
    with pytest.raises(ApiError) as refusal:
        prompt_for(model(QWEN | ({"image": ""} if input_type == "image" else {})), input_type)
    assert refusal.value.param == "input_type"
    assert str(refusal.value).startswith(message)


def test_a_refusal_lists_some_of_many_prompts() -> None:
    with pytest.raises(ApiError) as refusal:
        prompt_for(model({f"{index:0200}": "" for index in range(1024)}), "foo")
    assert str(refusal.value).endswith(" and more.")
    assert len(str(refusal.value)) < 3000
