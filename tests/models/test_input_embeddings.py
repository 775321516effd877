"""Tokens that come as embeddings: output equals transformers' with `inputs_embeds`, in float32, with chunks and
preemption, beside sequences of ids alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.models.case import Case
from tests.models.cases import ALL
from tests.models.tiny import save
from tests.unit.worker.driver import Driver
from tests.unit.worker.given_embeddings import EmbeddingReference
from tests.unit.worker.tiny_models import make_runner

pytestmark = pytest.mark.usefixtures("one_thread")

# Between the embeddings and the first layer stands ...
NAMES = {
    "llama",  # nothing, and all layers are fused
    "qwen3_moe",  # nothing
    "gpt2",  # a table of positions
    "bloom",  # a norm
    "gemma2",  # a factor that given embeddings have already
    "xglm",  # a factor that given embeddings have already, then sinusoids
    "granite",  # a factor that given embeddings get, too
    "opt, as opt-350m",  # a projection
    "gemma4_text, layers that share keys",  # another embedding, for each layer
    "gemma3",  # the same as in a model of text
    "deepseek_v3",  # nothing, and keys are latent
    "gpt_oss",
    "apertus, transformers' code",
    "gemma2, transformers' code",
    "granite, transformers' code",
    "ctrl, transformers' code",  # a factor that given embeddings get, too, then sinusoids
    "modernbert-decoder, transformers' code",  # a norm
}
# transformers compares the embeddings with those of an image's token, whose id is beyond the tiny vocabulary.
WITHOUT_REFERENCE = {"gemma4, inside a larger model"}
IS_LONG = os.environ.get("QUIRE_TEST_MODELS") == "all"
CASES = [case for case in ALL if str(case) in NAMES or (IS_LONG and str(case) not in WITHOUT_REFERENCE)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_given_embeddings_are_used_as_transformers_uses_them(case: Case, tmp_path: Path) -> None:
    reference = EmbeddingReference(save(tmp_path, case), seed=len(str(case)))
    runner = make_runner(tmp_path, 8, num_blocks=200, implementation=case.implementation)
    requests = [
        reference.request(1, 6, given=[0]),
        reference.request(23, 6, given=range(23)),
        reference.request(30, 6, given=range(4, 19)),
        reference.request(40, 6, given=[0, *range(9, 12), *range(17, 30), 39]),
        reference.request(17, 6),
        reference.request(33, 6),
    ]
    Driver(runner, seed=len(str(case)), max_chunk=7, max_running=5, preempt=0.05).run(*requests)
    for request in requests:
        reference.check(request)


def test_every_name_is_a_case() -> None:
    assert {str(case) for case in ALL} >= NAMES | WITHOUT_REFERENCE
