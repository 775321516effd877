"""The model's prompts stand in front of texts to embed, over a fake scheduler whose vectors tell the tokens."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from quire import AsyncClient, QuireError
from quire.inference.v1 import pooling_pb2
from quire.offline.engine import EmbeddingRequest, Engine
from quire.offline.pooling_params import PoolingParams
from quire.offline.prompts import parse_prompts
from services.router.limits import text_size
from tests.integration.router.conftest import MAX_MODEL_LEN, MODEL, Api, StartRouter
from tests.integration.router.fake_scheduler import FakeScheduler, unpack
from tests.integration.router.test_classification import classifier
from tests.integration.router.test_embeddings import TOKENIZER, embedding_scheduler, expected
from tests.integration.router.test_offline_engine import there
from tests.integration.router.test_other_apis import post

QUERY, DOCUMENT = "search for: ", "title: "
PROMPTS = {"query": QUERY, "document": DOCUMENT, "STS": "", "Clustering": "Gruppe für "}


def with_prompts(scheduler: FakeScheduler, default: str | None = None) -> FakeScheduler:
    prompts = [pooling_pb2.EmbeddingPrompt(name=name, text=text) for name, text in PROMPTS.items()]
    scheduler.model.embedding_prompts.CopyFrom(pooling_pb2.EmbeddingPrompts(prompts=prompts, default_name=default))
    return scheduler


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


async def cohere(api: Api, texts: list[str], **fields: Any) -> Any:
    return (await api.post("CreateCohereEmbedding", {"model": MODEL, "texts": texts, **fields})).json


@pytest.mark.parametrize(
    ("input_type", "prompt"),
    [
        ("search_query", QUERY),
        ("search_document", DOCUMENT),
        ("clustering", PROMPTS["Clustering"]),
        ("classification", ""),
        ("STS", ""),
        ("query", QUERY),
        (None, ""),
    ],
)
async def test_the_purpose_decides_what_stands_in_front(
    start_router: StartRouter, input_type: str | None, prompt: str
) -> None:
    api = await start_router(with_prompts(embedding_scheduler()))
    texts = ["Hello", "Köln"]
    reply = await cohere(api, texts, input_type=input_type)
    assert reply["embeddings"]["float"] == [expected(prompt + text) for text in texts]
    # The client's own texts come back, and the tokens of the prompt count.
    assert reply["texts"] == texts
    num_tokens = sum(len(ids_of(prompt + text)) for text in texts)
    assert reply["meta"]["billed_units"] == reply["meta"]["tokens"] == {"input_tokens": num_tokens}
    async with AsyncClient(api.address) as client:
        options: Any = {} if input_type is None else {"input_type": input_type}
        result = await client.embed(texts, **options)
        assert [list(vector) for vector in result.vectors] == [expected(prompt + text) for text in texts]


@pytest.mark.parametrize("input_type", ["search_query", "search_document", "classification", "clustering"])
async def test_a_model_without_prompts_has_one_vector_for_every_purpose(
    start_router: StartRouter, input_type: str
) -> None:
    """As a scheduler of the last release tells it."""
    api = await start_router(embedding_scheduler())
    assert (await cohere(api, ["Hello"], input_type=input_type))["embeddings"]["float"] == [expected("Hello")]


@pytest.mark.parametrize("input_type", ["foo", "image", "QUERY", ""])
async def test_other_purposes_are_refused(start_router: StartRouter, input_type: str) -> None:
    api = await start_router(with_prompts(embedding_scheduler()))
    refusal = await api.refused("CreateCohereEmbedding", {"texts": ["Hello"], "input_type": input_type})
    assert (refusal.status, refusal.error["param"]) == (grpc.StatusCode.INVALID_ARGUMENT, "input_type")
    if input_type:
        async with AsyncClient(api.address) as client:
            with pytest.raises(QuireError) as caught:
                await client.embed(["Hello"], input_type=input_type)
            assert caught.value.param == "input_type"


async def test_the_default_stands_in_front_of_texts_without_a_purpose(start_router: StartRouter) -> None:
    api = await start_router(with_prompts(embedding_scheduler(), "document"))
    vector, plain = expected(DOCUMENT + "Hello"), expected("Hello")
    assert (await cohere(api, ["Hello"]))["embeddings"]["float"] == [vector]
    assert (await cohere(api, ["Hello"], input_type="classification"))["embeddings"]["float"] == [plain]
    for given in ("Hello", ["Hello"]):
        reply = (await api.post("CreateEmbedding", {"input": given})).json
        assert [entry["embedding"] for entry in reply["data"]] == [vector]
        assert reply["usage"]["prompt_tokens"] == len(ids_of(DOCUMENT + "Hello"))
    (data,) = await post(api, "Embed", {"model": MODEL, "input": "Hello"})
    assert json.loads(data)["embeddings"] == [expected(DOCUMENT + "Hello", normalize=True)]
    async with AsyncClient(api.address) as client:
        result = await client.embed(["Hello"], return_prompt_token_ids=True)
        assert (list(result.vectors[0]), list(result.prompt_token_ids[0])) == (vector, ids_of(DOCUMENT + "Hello"))
        assert list((await client.embed(["Hello"], input_type="")).vectors[0]) == plain


async def test_token_ids_conversations_scores_and_classes_have_no_prompt(start_router: StartRouter) -> None:
    scheduler = with_prompts(embedding_scheduler(), "document")
    api = await start_router(scheduler)
    ids = ids_of("Hello")
    messages = [{"role": "user", "content": "Hello"}]
    await api.post("CreateEmbedding", {"input": ids})
    await api.post("CreateScore", {"text_1": "Hello", "text_2": "Hello"})
    await api.post("CreateRerank", {"query": "Hello", "documents": ["Hello"]})
    async with AsyncClient(api.address) as client:
        await client.embed([ids], input_type="search_query")
        await client.score("Hello", ["Hello"])
    engine, (prompt,) = Engine(api.address, None, 2, there), parse_prompts("Hello")
    try:
        # As LLM.score asks.
        await engine.embed([EmbeddingRequest("0", prompt, PoolingParams(), "")], lambda _: None)
    finally:
        await engine.close()
    assert {tuple(unpack(submit.prompt_token_ids)) for submit in scheduler.submits} == {tuple(ids)}
    await api.post("CreateEmbedding", {"messages": messages})
    body = {"messages": messages, "add_generation_prompt": False}
    tokens = (await api.post("Tokenize", body)).json["tokens"]
    assert unpack(scheduler.submits[-1].prompt_token_ids) == tokens


async def test_a_classifier_has_no_prompt(start_router: StartRouter) -> None:
    scheduler = with_prompts(classifier("bad", "good"), "document")
    api = await start_router(scheduler)
    await api.post("CreateClassification", {"input": "Hello"})
    assert len(unpack(scheduler.submits[-1].prompt_token_ids)) == len(ids_of("Hello")) + 2


async def test_a_text_is_cut_with_its_prompt(start_router: StartRouter) -> None:
    scheduler = with_prompts(embedding_scheduler(), "query")
    api = await start_router(scheduler)
    long = "ab " * MAX_MODEL_LEN
    ids = ids_of(QUERY + long)
    for fields, kept in (
        ({}, ids[:MAX_MODEL_LEN]),
        ({"truncate": "END", "max_tokens": 7}, ids[:7]),
        ({"truncate": "START", "max_tokens": 7}, ids[-7:]),
    ):
        await cohere(api, [long], input_type="search_query", **fields)
        assert unpack(scheduler.submits[-1].prompt_token_ids) == kept
    await api.post("CreateEmbedding", {"input": long, "truncate_prompt_tokens": 9})
    assert unpack(scheduler.submits[-1].prompt_token_ids) == ids[:9]
    # The text alone would fit.
    text = next(long[:end] for end in range(len(long), 0, -1) if len(ids_of(long[:end])) <= MAX_MODEL_LEN)
    for method, body in (
        ("CreateCohereEmbedding", {"texts": [text], "input_type": "search_query", "truncate": "NONE"}),
        ("CreateEmbedding", {"input": text}),
    ):
        message = (await api.refused(method, body)).error["message"]
        assert f"has {len(ids_of(QUERY + text))} with the model's prompt in front. Please shorten it" in message


async def test_the_limit_on_a_text_s_size_is_for_the_text_alone(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_size, "MAX_TEXT_BYTES", 100)
    api = await start_router(with_prompts(embedding_scheduler(), "query"))
    for fields in ({}, {"truncate": "START"}, {"truncate": "NONE"}):
        assert await cohere(api, ["é" * 50], **fields)
        refusal = await api.refused("CreateCohereEmbedding", {"texts": ["é" * 51], **fields})
        assert "may have at most 100 bytes of UTF-8, but this one has 102" in refusal.error["message"]
        assert refusal.error["param"] == "texts[0]"
