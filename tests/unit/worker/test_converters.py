"""What a new sequence on the wire may not say."""

from __future__ import annotations

import pytest

from quire.inference.v1 import model_pb2, pooling_pb2
from quire.worker.v1 import worker_pb2
from services.worker.errors import PlanError
from services.worker.fields import MAX_SIZE, MAX_VOCAB_SIZE
from services.worker.models.config import MAX_TOKEN_IDS
from services.worker.pooling.classifier import MAX_LABEL_BYTES, MAX_LABELS
from services.worker.pooling.config import MAX_DIMENSIONS
from services.worker.pooling.prompts import MAX_ALL_PROMPTS_BYTES, MAX_PROMPTS
from services.worker.service.converters import plan_from_proto
from shared.message_parts import PART_BYTES


def test_a_sequence_that_is_pooled_wants_no_log_probabilities() -> None:
    pooled = worker_pb2.NewSequence(wire_id=3, prompt_logprobs_from=1, pooling=pooling_pb2.PoolingParams())
    with pytest.raises(PlanError, match="new sequence 3 asks for pooling, but also for log probabilities"):
        plan_from_proto(worker_pb2.StepPlan(new_sequences=[pooled]))


@pytest.mark.parametrize(
    "model",
    [
        model_pb2.ModelInfo(
            classifier=pooling_pb2.ClassifierInfo(labels=["l" * (MAX_LABEL_BYTES // MAX_LABELS)] * MAX_LABELS)
        ),
        model_pb2.ModelInfo(
            embedding=pooling_pb2.EmbeddingInfo(matryoshka_dimensions=[MAX_SIZE] * MAX_DIMENSIONS),
            embedding_prompts=pooling_pb2.EmbeddingPrompts(
                prompts=[pooling_pb2.EmbeddingPrompt(text="t" * (MAX_ALL_PROMPTS_BYTES // MAX_PROMPTS))] * MAX_PROMPTS
            ),
        ),
    ],
    ids=["classifier", "embeddings"],
)
def test_the_largest_hello_is_one_message(model: model_pb2.ModelInfo) -> None:
    """Schedulers and routers expect a hello that is not sent in parts."""
    model.eos_token_ids.extend([MAX_VOCAB_SIZE - 1] * MAX_TOKEN_IDS)
    model.aliases.extend(["a" * 1024] * 16)
    assert worker_pb2.RunResponse(hello=worker_pb2.Hello(model=model)).ByteSize() < PART_BYTES - 16_384
