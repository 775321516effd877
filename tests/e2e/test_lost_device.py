"""A worker loses its device amid an answer. The client sees a pause, and the text of an undisturbed run."""

from __future__ import annotations

import openai

from tests.e2e.conftest import serving
from tests.e2e.parts import pid_of
from tests.e2e.worker_script import lose_device_after
from tests.fakes.waiting import HANG_S


def test_an_answer_goes_on_when_the_device_is_lost() -> None:
    """The process ends by itself, and `quire serve` starts another: the sequence fails no more than it does when a
    worker is killed."""
    with serving("--max-num-batched-tokens", "64", model="quire-chat") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S)

        def answer() -> str:
            completion = client.completions.create(
                model=server.model, prompt="Count from 1 to 60.", temperature=0, max_tokens=200,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            assert completion.usage is not None
            assert completion.usage.completion_tokens == 200
            return completion.choices[0].text

        undisturbed, worker = answer(), pid_of("worker", server)
        server.script.give(worker, lose_device_after(20))
        assert answer() == undisturbed
        assert pid_of("worker", server) != worker
