"""/api/embed over a fake scheduler whose vectors tell what was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.router.http.json import PIECE_BYTES
from tests.integration.router.conftest import MAX_MODEL_LEN, MODEL, StartRouter, fake_scheduler
from tests.integration.router.fake_scheduler import unpack
from tests.integration.router.test_embeddings import TOKENIZER, embedding_scheduler, expected
from tests.integration.router.test_other_apis import error_of, post


async def test_texts_get_vectors_of_length_one_in_order(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler(is_matryoshka=True))
    texts = ["Hello", "Grüße aus Köln", "Hello"]
    for given, wanted in ((texts[1], texts[1:2]), (texts, texts)):
        (data,) = await post(api, "Embed", {"model": f"{MODEL}:latest", "input": given, "keep_alive": "5m"})
        answer = json.loads(data)
        assert answer["model"] == f"{MODEL}:latest"
        assert answer["embeddings"] == [expected(text, normalize=True) for text in wanted]
        assert answer["prompt_eval_count"] == sum(len(TOKENIZER.encode(text).ids) for text in wanted)
        assert answer["total_duration"] > answer["load_duration"] == 0
    (data,) = await post(api, "Embed", {"model": MODEL, "input": "Hello", "dimensions": 2})
    assert json.loads(data)["embeddings"] == [expected("Hello", normalize=True, dimensions=2)]


@pytest.mark.parametrize("given", [{}, {"input": ""}, {"input": []}])
async def test_without_a_text_the_model_is_there_anyway(start_router: StartRouter, given: dict[str, Any]) -> None:
    scheduler = embedding_scheduler()
    api = await start_router(scheduler)
    (data,) = await post(api, "Embed", {"model": MODEL, **given})
    assert json.loads(data)["embeddings"] == []
    assert not scheduler.submits


async def test_long_texts_are_cut_unless_that_is_forbidden(start_router: StartRouter) -> None:
    scheduler = embedding_scheduler()
    api = await start_router(scheduler)
    body = {"model": MODEL, "input": ["Hello", "x " * 2 * MAX_MODEL_LEN]}
    await post(api, "Embed", body)
    assert len(unpack(scheduler.submits[-1].prompt_token_ids)) == MAX_MODEL_LEN
    _, error = await error_of(api, "Embed", body | {"truncate": False})
    assert "'input[1]' has" in error["error"]
    assert error["error"].endswith("Please shorten it, or leave 'truncate' out.")


async def test_a_long_answer_comes_in_pieces(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler())
    pieces = await post(api, "Embed", {"model": MODEL, "input": ["Hello"] * 1500})
    assert len(pieces) > 1
    assert len(pieces[0]) < 2 * PIECE_BYTES
    assert json.loads(b"".join(pieces))["embeddings"] == [expected("Hello", normalize=True)] * 1500


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input": 5}, "Invalid type for 'input'"),
        ({"input": ["a", 5]}, "Invalid type for 'input[1]'"),
        ({"input": ["x"] * 2049}, "Invalid 'input': array too long"),
        ({"input": "x", "dimensions": 3}, "Invalid 'dimensions': 3"),
        ({"input": "x", "model": "other"}, "`other` does not exist"),
    ],
)
async def test_what_is_wrong_is_named(start_router: StartRouter, body: dict[str, Any], words: str) -> None:
    api = await start_router(embedding_scheduler())
    _, error = await error_of(api, "Embed", {"model": MODEL, **body})
    assert words in error["error"]


async def test_a_model_without_embeddings_says_so(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    _, error = await error_of(api, "Embed", {"model": MODEL, "input": "x"})
    assert error == {"error": f"The model `{MODEL}` does not support embeddings."}


async def test_a_model_that_only_embeds_says_so(start_router: StartRouter) -> None:
    for is_encoder, capability in ((True, "embedding"), (False, "completion")):
        scheduler = embedding_scheduler()
        scheduler.model.is_encoder = is_encoder
        api = await start_router(scheduler)
        (data,) = await post(api, "ShowModel", {"model": MODEL})
        capabilities = json.loads(data)["capabilities"]
        assert capabilities[0] == capability
        assert ("embedding" in capabilities) == is_encoder
