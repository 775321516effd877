"""Ended requests are freed at once. What waits for the garbage collector makes it stop all streams for longer."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from services.router.dispatch import Submission, SubmittedSequence
from tests.fakes.waiting import until
from tests.integration.router.conftest import StartRouter, fake_scheduler
from tests.integration.router.test_embeddings import embedding_scheduler

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, "n": 2}


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("CreateChatCompletion", CHAT),
        ("CreateChatCompletion", CHAT | {"stream": True}),
        ("CreateCompletion", {"prompt": ["a", "b"], "max_tokens": 3}),
        ("CreateEmbedding", {"input": ["a", "b", "c"]}),
    ],
)
async def test_a_request_is_freed_without_a_collection(start_router: StartRouter, method: str, body: Any) -> None:
    api = await start_router(embedding_scheduler() if method == "CreateEmbedding" else fake_scheduler())
    for _ in range(3):
        await api.post(method, body)
    await until(lambda: not any(isinstance(one, Submission | SubmittedSequence) for one in gc.get_objects()))
