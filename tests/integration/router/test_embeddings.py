"""/v1/embeddings, /v1/score, /v1/rerank and Embed over a fake scheduler whose vectors tell what was asked for."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
import re
import struct
import time
from array import array
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from quire import AsyncClient, Client, QuireError
from quire.inference.v1 import pooling_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.router.embedding import embedder
from services.router.embedding.embedder import MAX_OPEN, MAX_OPEN_TOKENS
from services.router.http.json import PIECE_BYTES
from tests.fakes.waiting import HANG_S
from tests.integration.router.conftest import MAX_MODEL_LEN, MODEL, RefusedError, StartRouter, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, FakeScheduler, unpack
from tests.integration.router.small_tokenizers import byte_level

SIZE = 6
TOKENIZER = byte_level()


def vector_of(token_ids: Sequence[int], pooling: pooling_pb2.PoolingParams) -> list[float]:
    """Depends on every token; of length 1 if that is asked for."""
    digest = hashlib.sha256(repr(list(token_ids)).encode()).digest()
    values = [byte / 64 - 2 for byte in digest[: pooling.dimensions or SIZE]]
    length = math.sqrt(sum(value * value for value in values))
    if pooling.normalize:
        values = [value / length for value in values]
    return list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values)))


def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
    assert submit.HasField("pooling")
    vector = vector_of(unpack(submit.prompt_token_ids), submit.pooling)
    return Answer([], embedding=struct.pack(f"<{len(vector)}f", *vector))


def embedding_scheduler(*, is_encoder: bool = True, **info: Any) -> FakeScheduler:
    scheduler = fake_scheduler(script)
    scheduler.model.embedding.CopyFrom(pooling_pb2.EmbeddingInfo(size=SIZE, **info))
    scheduler.model.is_encoder = is_encoder
    return scheduler


def expected(text: str, **pooling: Any) -> list[float]:
    return vector_of(TOKENIZER.encode(text).ids, pooling_pb2.PoolingParams(**pooling))


async def test_every_form_of_input_gets_a_vector_each_in_order(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler())
    texts = ["Hello", "Grüße aus Köln", "Hello"]
    ids = [TOKENIZER.encode(text).ids for text in texts]
    for given, wanted in ((texts[0], texts[:1]), (texts, texts), (ids[0], texts[:1]), (ids, texts)):
        reply = (await api.post("CreateEmbedding", {"model": MODEL, "input": given, "user": "me"})).json
        assert reply["object"] == "list"
        # As vLLM's; Mistral's client reads no answer without an id.
        assert re.fullmatch("embd-[0-9a-f]{32}", reply["id"])
        assert abs(time.time() - reply["created"]) < HANG_S
        assert reply["model"] == MODEL
        assert [entry["index"] for entry in reply["data"]] == list(range(len(wanted)))
        assert [entry["embedding"] for entry in reply["data"]] == [expected(text) for text in wanted]
        num_tokens = sum(len(ids[texts.index(text)]) for text in wanted)
        assert reply["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


async def test_base64_holds_little_endian_floats(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler())
    reply = (await api.post("CreateEmbedding", {"input": "Hello", "encoding_format": "base64"})).json
    data = base64.b64decode(reply["data"][0]["embedding"])
    assert list(struct.unpack(f"<{SIZE}f", data)) == expected("Hello")


async def test_dimensions_and_normalize_reach_the_worker(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler(is_matryoshka=True, matryoshka_dimensions=[2, 4]))
    body = {"input": "Hello", "dimensions": 4, "normalize": True}
    reply = (await api.post("CreateEmbedding", body)).json
    assert reply["data"][0]["embedding"] == expected("Hello", dimensions=4, normalize=True)
    named = (await api.post("CreateEmbedding", {"input": "Hello", "dimensions": 4, "use_activation": True})).json
    assert named["data"] == reply["data"]


async def test_inputs_are_cut_where_that_is_asked_for(start_router: StartRouter) -> None:
    scheduler = embedding_scheduler()
    api = await start_router(scheduler)
    long = "ab " * MAX_MODEL_LEN
    for limit, length in ((-1, MAX_MODEL_LEN), (7, 7)):
        await api.post("CreateEmbedding", {"input": long, "truncate_prompt_tokens": limit})
        await api.post("CreateEmbedding", {"input": [5] * 2 * MAX_MODEL_LEN, "truncate_prompt_tokens": limit})
        assert [len(unpack(submit.prompt_token_ids)) for submit in scheduler.submits[-2:]] == [length, length]


async def test_inputs_are_cut_at_the_side_that_is_asked_for(start_router: StartRouter) -> None:
    scheduler = embedding_scheduler()
    api = await start_router(scheduler)
    text = "one two three"
    tokens = (await api.post("Tokenize", {"prompt": text, "add_special_tokens": False})).json["tokens"]
    for given in (text, tokens):
        for side, kept in (("left", tokens[-2:]), ("right", tokens[:2])):
            body = {"input": given, "truncate_prompt_tokens": 2, "truncation_side": side, "add_special_tokens": False}
            await api.post("CreateEmbedding", body)
            assert unpack(scheduler.submits[-1].prompt_token_ids) == kept
    pair = {"text_1": "a", "text_2": "b", "truncation_side": "left"}
    assert (await api.refused("CreateScore", pair)).error["param"] == "truncation_side"
    padded = {"input": "x", "padding": "max_length"}
    assert (await api.refused("CreateEmbedding", padded)).error["param"] == "padding"


@pytest.mark.parametrize(("max_tokens", "num_open"), [(MAX_OPEN_TOKENS, MAX_OPEN), (20, 10)])
async def test_many_inputs_are_offered_a_few_at_a_time_and_the_answer_comes_in_pieces(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch, max_tokens: int, num_open: int
) -> None:
    monkeypatch.setattr(embedder, "MAX_OPEN_TOKENS", max_tokens)
    held = asyncio.Event()

    def slow(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        answer = script(submit, choice)
        answer.pause_after, answer.resume = 0, held
        return answer

    scheduler = embedding_scheduler()
    scheduler.script = slow
    api = await start_router(scheduler)
    inputs = [[1 + index % 100, index % 7] for index in range(2048)]
    call = asyncio.ensure_future(api.post("CreateEmbedding", {"input": inputs}))
    await scheduler.wait_for(lambda: len(scheduler.submits) == num_open)
    # Were there another Submit, it would come before that of a later request.
    later = asyncio.ensure_future(api.post("CreateEmbedding", {"input": [[1, 2]]}))
    await scheduler.wait_for(lambda: len(scheduler.submits) > num_open)
    assert unpack(scheduler.submits[num_open].prompt_token_ids) == [1, 2]
    assert len(scheduler.submits) == num_open + 1
    held.set()
    await later
    reply = await call
    assert len(reply.messages) > 1
    data = json.loads(b"".join(reply.messages))["data"]
    assert [entry["embedding"] for entry in data] == [vector_of(ids, pooling_pb2.PoolingParams()) for ids in inputs]


async def test_a_lost_scheduler_s_inputs_go_on_at_another(start_router: StartRouter) -> None:
    first, second = embedding_scheduler(), embedding_scheduler()
    held = asyncio.Event()

    def never(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        answer = script(submit, choice)
        answer.pause_after, answer.resume = 0, held
        return answer

    first.script = second.script = never
    api = await start_router(first, second)
    call = asyncio.ensure_future(api.post("CreateEmbedding", {"input": ["one", "two", "three", "four"]}))
    await asyncio.sleep(0)
    await asyncio.wait([asyncio.ensure_future(s.wait_for(lambda s=s: bool(s.submits))) for s in (first, second)],  # type: ignore[misc]
                       return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
    lost = first if first.submits else second
    await lost.stop()
    held.set()
    reply = (await call).json
    assert [entry["embedding"] for entry in reply["data"]] == [expected(t) for t in ("one", "two", "three", "four")]
    assert api.router.placement.num_resubmissions >= 1


async def test_a_client_that_leaves_ends_its_inputs(start_router: StartRouter) -> None:
    def never(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        answer = script(submit, choice)
        answer.pause_after = 0
        return answer

    scheduler = embedding_scheduler()
    scheduler.script = never
    api = await start_router(scheduler)
    call = asyncio.ensure_future(api.post("CreateEmbedding", {"input": ["one", "two"]}))
    await scheduler.wait_for(lambda: len(scheduler.submits) == 2)
    call.cancel()
    await scheduler.wait_for(lambda: len(scheduler.aborted) == 2)
    assert api.router.generator.num_requests == 0


async def test_a_vector_of_another_size_is_a_fault_of_the_server_s(start_router: StartRouter) -> None:
    scheduler = embedding_scheduler()
    scheduler.script = lambda submit, choice: Answer([], embedding=b"\0" * 8)
    api = await start_router(scheduler)
    refused = await api.refused("CreateEmbedding", {"input": "x"})
    assert refused.status is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "Missing required parameter"),
        ({"input": ""}, "input", ""),
        ({"input": []}, "input", ""),
        ({"input": [[]]}, "input[0]", ""),
        ({"input": ["a", ""]}, "input[1]", ""),
        ({"input": ["a", 5]}, "input[1]", "a string"),
        ({"input": 5}, "input", "a string, an array of strings, token ids"),
        ({"input": [[1, 100_000]]}, "input[0][1]", "out of range"),
        ({"input": [1, -1]}, "input[1]", "out of range"),
        ({"input": ["x"] * 2049}, "input", "2048"),
        ({"input": "ab " * MAX_MODEL_LEN}, "input", "maximum context length"),
        ({"input": ["x", [3] * (MAX_MODEL_LEN + 1)][1:]}, "input[0]", "maximum context length"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format", "float"),
        ({"input": "x", "dimensions": 0}, "dimensions", "below minimum"),
        ({"input": "x", "dimensions": 3}, "dimensions", "not trained for fewer"),
        ({"input": "x", "truncate_prompt_tokens": MAX_MODEL_LEN + 1}, "truncate_prompt_tokens", "or -1"),
        ({"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "from 1"),
        ({"input": "x", "model": "other"}, "model", "does not exist"),
    ],
)
async def test_what_is_wrong_is_named(start_router: StartRouter, body: Any, param: str, words: str) -> None:
    scheduler = embedding_scheduler()
    api = await start_router(scheduler)
    refused = await api.refused("CreateEmbedding", body)
    assert refused.error["param"] == param
    assert words in refused.error["message"]
    assert not scheduler.submits


async def test_the_model_s_own_size_is_no_shortening(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler())
    reply = (await api.post("CreateEmbedding", {"input": "x", "dimensions": SIZE})).json
    assert len(reply["data"][0]["embedding"]) == SIZE


async def test_an_encoder_generates_nothing_and_a_plain_generator_embeds_nothing(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler())
    for call in (api.chat(), api.complete()):
        with pytest.raises(RefusedError) as caught:
            await call
        assert caught.value.error["param"] == "model"
        assert "is an encoder" in caught.value.error["message"]
    async with AsyncClient(api.address) as client:
        with pytest.raises(QuireError, match="is an encoder"):
            await client.generate("Hello")
    api = await start_router(fake_scheduler())
    refused = await api.refused("CreateEmbedding", {"input": "x"})
    assert (refused.error["param"], "does not support embeddings" in refused.error["message"]) == ("model", True)
    refused = await api.refused("CreateRerank", {"query": "x", "documents": ["y"]})
    assert refused.error["param"] == "model"


async def test_models_say_what_they_can_do(start_router: StartRouter) -> None:
    for scheduler, tasks in (
        (embedding_scheduler(), ["embed"]),
        (embedding_scheduler(is_encoder=False), ["generate", "embed"]),
        (fake_scheduler(), ["generate"]),
    ):
        api = await start_router(scheduler)
        assert {tuple(card["tasks"]) for card in (await api.get("ListModels")).json["data"]} == {tuple(tasks)}


def cosine(a: str, b: str) -> float:
    return sum(x * y for x, y in zip(expected(a, normalize=True), expected(b, normalize=True), strict=True))


async def test_rounding_brings_no_cosine_above_1(start_router: StartRouter) -> None:
    texts = [f"text {number}" for number in range(50)]
    assert max(cosine(text, text) for text in texts) > 1
    api = await start_router(embedding_scheduler())
    reply = (await api.post("CreateScore", {"text_1": texts, "text_2": texts})).json
    scores = [entry["score"] for entry in reply["data"]]
    assert max(scores) == 1
    assert scores == pytest.approx([1] * 50)


async def test_scores_are_cosines_of_one_with_each_or_pair_by_pair(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler())
    for first, second, pairs in (
        ("a", "b", [("a", "b")]),
        ("a", ["b", "c"], [("a", "b"), ("a", "c")]),
        (["a"], ["b", "c"], [("a", "b"), ("a", "c")]),
        (["a", "d"], ["b", "c"], [("a", "b"), ("d", "c")]),
    ):
        reply = (await api.post("CreateScore", {"text_1": first, "text_2": second})).json
        assert [(entry["index"], entry["object"]) for entry in reply["data"]] == [
            (index, "score") for index in range(len(pairs))
        ]
        assert [entry["score"] for entry in reply["data"]] == pytest.approx([cosine(*pair) for pair in pairs])
        newer = (await api.post("CreateScore", {"queries": first, "documents": second})).json
        assert newer["data"] == reply["data"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_1": ["a", "b", "c"], "text_2": ["b", "c"]}, "text_1"),
        ({"text_1": "a", "text_2": ["b", ""]}, "text_2[1]"),
        ({"text_2": "a"}, "text_1"),
        ({}, "text_1"),
        ({"queries": ["a", "b", "c"], "documents": ["b", "c"]}, "queries"),
        ({"queries": "a", "documents": ["b", "x " * MAX_MODEL_LEN]}, "documents[1]"),
        ({"queries": "a"}, "documents"),
        ({"queries": "a", "documents": "b", "text_1": "a"}, "queries"),
    ],
)
async def test_what_is_wrong_with_a_pair_is_named(start_router: StartRouter, body: Any, param: str) -> None:
    api = await start_router(embedding_scheduler())
    assert (await api.refused("CreateScore", body)).error["param"] == param


async def test_reranked_documents_come_likest_first(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler())
    documents = ["red", "green", "blue", "red"]
    best = sorted(range(4), key=lambda index: -cosine("colour", documents[index]))
    for top_n, count in ((None, 4), (0, 4), (2, 2), (9, 4)):
        body = {"query": "colour", "documents": documents, "top_n": top_n}
        reply = (await api.post("CreateRerank", body)).json
        assert [entry["index"] for entry in reply["results"]] == best[:count]
        assert [entry["document"]["text"] for entry in reply["results"]] == [documents[index] for index in best[:count]]
        scores = [entry["relevance_score"] for entry in reply["results"]]
        assert scores == pytest.approx([cosine("colour", documents[index]) for index in best[:count]])
    reply = (await api.post("CreateRerank", {"query": "x", "documents": ["a"], "return_documents": False})).json
    assert reply["results"] == [{"index": 0, "relevance_score": pytest.approx(cosine("x", "a"))}]
    assert (await api.refused("CreateRerank", {"query": "x", "documents": []})).error["param"] == "documents"
    assert (await api.refused("CreateRerank", {"documents": ["x"]})).error["param"] == "query"


async def test_typed_clients_get_the_same_vectors(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler(is_matryoshka=True))
    texts = ["Hello", "world"]
    async with AsyncClient(api.address) as client:
        result = await client.embed(texts, dimensions=3, normalize=True)
        assert [list(v) for v in result.vectors] == [expected(t, dimensions=3, normalize=True) for t in texts]
        assert result.usage.prompt_tokens == sum(len(TOKENIZER.encode(text).ids) for text in texts)
        with pytest.raises(QuireError, match="at most") as caught:
            await client.embed(["x"] * 2049)
        assert caught.value.param == "inputs"
        with pytest.raises(QuireError) as caught:
            await client.embed(["x"], dimensions=99)
        assert caught.value.param == "pooling.dimensions"

    def in_a_thread() -> Any:
        with Client(api.address) as client:
            return client.embed([TOKENIZER.encode(text).ids for text in texts]).vectors

    assert [list(vector) for vector in await asyncio.to_thread(in_a_thread)] == [expected(text) for text in texts]


async def test_metrics_count_inputs_and_their_tokens(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler())
    await api.post("CreateEmbedding", {"input": [[1, 2, 3], [4]], "unheard_of": 1})
    lines = (await api.get("GetMetrics")).messages[0].decode().splitlines()
    router = f'router="{api.router.id}"'
    assert f'vllm:prompt_tokens_total{{model_name="{MODEL}",{router}}} 4.0' in lines
    assert f'vllm:request_success_total{{finished_reason="stop",model_name="{MODEL}",{router}}} 2.0' in lines
    assert f'quire:ignored_fields_total{{method="embeddings",{router}}} 1.0' in lines


async def test_replies_are_as_openai_s_document_says(start_router: StartRouter, openai_document: Any) -> None:
    import jsonschema

    api = await start_router(embedding_scheduler())
    reply = (await api.post("CreateEmbedding", {"input": ["a", "b"]})).json
    schema = {"$ref": "#/components/schemas/CreateEmbeddingResponse", "components": openai_document["components"]}
    jsonschema.Draft202012Validator(schema).validate(reply)


async def test_cohere_s_embeddings_come_by_type(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler(is_matryoshka=True))
    texts = ["Hello", "Köln"]
    reply = (
        await api.post("CreateCohereEmbedding", {"model": MODEL, "texts": texts, "input_type": "search_query"})
    ).json
    assert reply["embeddings"] == {"float": [expected(text) for text in texts]}
    assert reply["texts"] == texts
    num_tokens = sum(len(TOKENIZER.encode(text).ids) for text in texts)
    assert reply["meta"]["billed_units"] == reply["meta"]["tokens"] == {"input_tokens": num_tokens}
    body = {"texts": texts, "embedding_types": ["base64", "float"], "output_dimension": 4}
    reply = (await api.post("CreateCohereEmbedding", body)).json
    cut = [expected(text, dimensions=4) for text in texts]
    assert reply["embeddings"]["float"] == cut
    assert [list(struct.unpack("<4f", base64.b64decode(text))) for text in reply["embeddings"]["base64"]] == cut


async def test_cohere_s_binary_embeddings_are_signs(start_router: StartRouter) -> None:
    values = [1.0, -1.0, 0.0, -0.5, -2.0, 3.0, -1.0, 1.0, *[-1.0] * 8]
    scheduler = fake_scheduler(lambda submit, choice: Answer([], embedding=struct.pack("<16f", *values)))
    scheduler.model.embedding.CopyFrom(pooling_pb2.EmbeddingInfo(size=16))
    api = await start_router(scheduler)
    body = {"texts": ["Hello"], "embedding_types": ["binary", "ubinary"]}
    reply = (await api.post("CreateCohereEmbedding", body)).json
    assert reply["embeddings"] == {"binary": [[0b10100101 - 128, -128]], "ubinary": [[0b10100101, 0]]}


async def test_a_long_answer_of_cohere_s_comes_in_pieces(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler())
    # In JSON, each of these characters has six bytes.
    reply = await api.post("CreateCohereEmbedding", {"texts": ["\x01" * 60_000], "truncate": "END"})
    assert max(map(len, reply.messages)) < 200_000
    assert reply.json["texts"] == ["\x01" * 60_000]
    texts = ["Hello", "Köln"] * 512
    body = {"texts": texts, "embedding_types": ["float", "base64"]}
    reply = await api.post("CreateCohereEmbedding", body)
    assert len(reply.messages) > 1
    assert max(map(len, reply.messages)) < 2 * PIECE_BYTES
    answer = json.loads(b"".join(reply.messages))
    vectors = [expected(text) for text in texts]
    assert answer["texts"] == texts
    assert list(answer["embeddings"]) == body["embedding_types"]
    assert answer["embeddings"]["float"] == vectors
    assert answer["embeddings"]["base64"] == [base64.b64encode(array("f", vector)).decode() for vector in vectors]


async def test_cohere_s_texts_are_cut_at_either_end_or_refused(start_router: StartRouter) -> None:
    scheduler = embedding_scheduler()
    api = await start_router(scheduler)
    long = "ab " * MAX_MODEL_LEN
    ids = TOKENIZER.encode(long).ids
    for truncate, max_tokens, kept in (
        (None, None, ids[:MAX_MODEL_LEN]),
        ("END", 7, ids[:7]),
        ("START", 7, ids[-7:]),
        ("START", None, ids[-MAX_MODEL_LEN:]),
    ):
        await api.post("CreateCohereEmbedding", {"texts": [long], "truncate": truncate, "max_tokens": max_tokens})
        assert unpack(scheduler.submits[-1].prompt_token_ids) == kept
    for body in (
        {"texts": [long], "truncate": "NONE"},
        {"texts": ["a b c d e f"], "truncate": "NONE", "max_tokens": 2},
    ):
        refusal = await api.refused("CreateCohereEmbedding", body)
        assert refusal.error["param"] == "texts[0]"
        assert "set 'truncate' to 'END'" in refusal.error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "texts"),
        ({"images": ["data:image/png;base64,"]}, "images"),
        ({"inputs": [{"content": [{"type": "image_url", "image_url": {}}]}]}, "inputs[0].content[0].type"),
        ({"inputs": [{"content": [{"type": "text"}]}]}, "inputs[0].content[0].text"),
        ({"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types"),
        ({"texts": ["a"], "embedding_types": ["binary"]}, "embedding_types"),
        ({"texts": ["a"], "embedding_types": ["float16"]}, "embedding_types[0]"),
        ({"texts": ["a"], "output_dimension": 3}, "output_dimension"),
        ({"texts": ["a"], "truncate": "MIDDLE"}, "truncate"),
    ],
)
async def test_what_is_wrong_with_cohere_s_body_is_named(
    start_router: StartRouter, body: dict[str, Any], param: str
) -> None:
    api = await start_router(embedding_scheduler())
    refusal = await api.refused("CreateCohereEmbedding", body)
    assert (refusal.status, refusal.error["param"]) == (grpc.StatusCode.INVALID_ARGUMENT, param)


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("CreateEmbedding", {"input": ["Hello", "Köln"]}),
        ("CreateRerank", {"query": "Hello", "documents": ["Köln", "Hello"]}),
        ("CreateScore", {"text_1": "Hello", "text_2": ["Köln", "Hello"]}),
        ("CreateScore", {"queries": "Hello", "documents": ["Köln", "Hello"]}),
    ],
)
async def test_an_invocation_is_told_by_its_fields(
    start_router: StartRouter, method: str, body: dict[str, Any]
) -> None:
    api = await start_router(embedding_scheduler())
    given = (await api.post(method, {"model": MODEL} | body)).json
    asked = (await api.post("CreateInvocation", {"model": MODEL} | body)).json
    assert {**asked, "id": "", "created": 0} == {**given, "id": "", "created": 0}


async def test_a_conversation_is_embedded_as_its_template_writes_it(start_router: StartRouter) -> None:
    scheduler = embedding_scheduler()
    api = await start_router(scheduler)
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    for options in ({}, {"add_generation_prompt": True}, {"continue_final_message": True}):
        await api.post("CreateEmbedding", {"model": MODEL, "messages": messages} | options)
        template = {"add_generation_prompt": False} | options
        tokens = (await api.post("Tokenize", {"model": MODEL, "messages": messages} | template)).json["tokens"]
        assert unpack(scheduler.submits[-1].prompt_token_ids) == tokens
    (reply,) = (await api.post("CreateEmbedding", {"messages": messages})).json["data"]
    assert reply["index"] == 0
    await api.post("CreateEmbedding", {"messages": messages, "truncate_prompt_tokens": 3})
    assert len(unpack(scheduler.submits[-1].prompt_token_ids)) == 3
    for body, param in (
        ({}, "input"),
        ({"input": "x", "messages": messages}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x" * 10_000}]}, "messages"),
    ):
        assert (await api.refused("CreateEmbedding", {"model": MODEL} | body)).error["param"] == param
