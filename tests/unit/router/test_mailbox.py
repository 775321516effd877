"""The mailbox between a scheduler's frames and the task that serves a request."""

from __future__ import annotations

import time

import pytest

from services.router.dispatch.deliveries import Deliveries
from services.router.dispatch.submission import Mailbox, Submission
from services.router.dispatch.work import Generate
from services.router.errors import ApiError, unavailable
from services.router.model import ModelInfo
from services.router.parameters.sampling import SamplingParams, StopConditions

MODEL = ModelInfo("m", (), 100, 10, frozenset(), SamplingParams(), "", 0, "", "")


def submission(mailbox: Mailbox, n: int) -> Submission:
    return Submission(
        request_id="r", model=MODEL, prompt_token_ids=[1], work=Generate(SamplingParams(), StopConditions(8)), n=n,
        deadline=None, traceparent="", mailbox=mailbox,
    )  # fmt: skip


async def test_the_age_of_what_is_taken_is_that_of_its_oldest_news() -> None:
    mailbox = Mailbox(Deliveries())
    first, second = submission(mailbox, 2).sequences
    before = time.monotonic()
    mailbox.put(first)
    between = time.monotonic()
    mailbox.put(second)
    mailbox.put(first)

    assert await mailbox.take() == [first, second]
    assert before <= mailbox.news_since <= between

    mailbox.put(second)
    assert await mailbox.take() == [second]
    assert mailbox.news_since >= between


async def test_what_came_before_a_failure_is_taken_before_it() -> None:
    mailbox = Mailbox(Deliveries())
    (sequence,) = submission(mailbox, 1).sequences
    mailbox.put(sequence)
    mailbox.fail(unavailable("gone"))
    assert await mailbox.take() == [sequence]
    with pytest.raises(ApiError, match="gone"):
        await mailbox.take()
