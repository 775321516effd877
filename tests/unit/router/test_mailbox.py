"""The mailbox between a scheduler's frames and the task that serves a request."""

from __future__ import annotations

import time

from services.router.deliveries import Deliveries
from services.router.model import ModelInfo
from services.router.sampling import SamplingParams, StopConditions
from services.router.submission import Mailbox, Submission

MODEL = ModelInfo("m", (), 100, 10, frozenset(), SamplingParams(), "", 0, "", "")


async def test_the_age_of_what_is_taken_is_that_of_its_oldest_news() -> None:
    mailbox = Mailbox(Deliveries())
    submission = Submission(
        request_id="r", model=MODEL, prompt_token_ids=[1], sampling=SamplingParams(), stop=StopConditions(8), n=2,
        deadline=None, traceparent="", mailbox=mailbox,
    )  # fmt: skip
    first, second = submission.sequences
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
