"""A worker loses its device amid an answer. The client sees a pause, and the text of an undisturbed run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import serving
from tests.e2e.under_way import pid_of

ADDED = Path(__file__).parent / "lost_device"


def test_an_answer_goes_on_when_the_device_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends by itself, and `quire serve` starts another: the sequence fails no more than it does when a
    worker is killed."""
    path = [str(ADDED), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    with serving("--max-num-batched-tokens", "64", model="quire-chat") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=100)

        def answer() -> str:
            completion = client.completions.create(
                model=server.model, prompt="Count from 1 to 60.", temperature=0, max_tokens=200,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            assert completion.usage is not None
            assert completion.usage.completion_tokens == 200
            return completion.choices[0].text

        undisturbed, worker = answer(), pid_of("worker", server)
        os.kill(worker, signal.SIGUSR1)
        assert answer() == undisturbed
        assert pid_of("worker", server) != worker
