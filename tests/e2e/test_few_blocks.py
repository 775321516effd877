"""A KV cache that holds one and a half of the stories asked for: sequences are preempted, and no client can tell."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from tests.e2e.conftest import STORIES, serving
from tests.e2e.parts import metric, num_sequences, pid_of
from tests.e2e.worker_script import standing_still
from tests.fakes.waiting import wait_until


async def test_stories_are_told_in_full() -> None:
    if not STORIES.exists():
        pytest.skip(f"{STORIES} is not there")
    golden = json.loads((STORIES / "golden.json").read_text())["text"]
    blocks = ("--num-gpu-blocks-override", "50", "--block-size", "8")
    steps = ("--max-num-seqs", "8", "--max-num-batched-tokens", "24")
    with serving(str(STORIES), *blocks, *steps, model="stories260k") as server:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            # All are there before the first of them begins.
            with standing_still(pid_of("worker", server)):
                calls = [
                    asyncio.create_task(
                        client.completions.create(model=server.model, prompt=[1], max_tokens=255, temperature=0)
                    )
                    for _ in range(6)
                ]
                await asyncio.to_thread(wait_until, lambda: num_sequences(server) == 6)
            for answer in await asyncio.gather(*calls):
                assert answer.choices[0].text == golden
            await asyncio.to_thread(wait_until, lambda: metric(server, "vllm:num_preemptions_total") > 0)
