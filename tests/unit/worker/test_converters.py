"""What a new sequence on the wire may not say."""

from __future__ import annotations

import pytest

from quire.inference.v1 import pooling_pb2
from quire.worker.v1 import worker_pb2
from services.worker.errors import PlanError
from services.worker.service.converters import plan_from_proto


def test_a_sequence_that_is_pooled_wants_no_log_probabilities() -> None:
    pooled = worker_pb2.NewSequence(wire_id=3, prompt_logprobs_from=1, pooling=pooling_pb2.PoolingParams())
    with pytest.raises(PlanError, match="new sequence 3 asks for pooling, but also for log probabilities"):
        plan_from_proto(worker_pb2.StepPlan(new_sequences=[pooled]))
