"""A model that was trained: the published greedy text comes out, token by token and in company."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.unit.worker.driver import Driver, Request
from tests.unit.worker.tiny_models import make_runner

SHARED = Path(os.environ.get("QUIRE_SHARED", Path(__file__).parents[4] / "shared"))
STORIES = SHARED / "models" / "stories260k"

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not STORIES.is_dir(), reason=f"the trained test model is not at {STORIES}"),
]


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_the_published_text(block_size: int) -> None:
    golden = json.loads((STORIES / "golden.json").read_text())
    tokenizer = Tokenizer.from_file(str(STORIES / "tokenizer.json"))
    runner = make_runner(STORIES, block_size, num_blocks=2048 // block_size)
    story = Request(golden["prompt_token_ids"], golden["max_tokens"])
    others = [Request(tokenizer.encode(text).ids, 40) for text in ("The dog", "One day, Tom and Sue went")]
    Driver(runner, seed=block_size, preempt=0.01).run(story, *others)
    assert tokenizer.decode(story.output) == golden["text"]
