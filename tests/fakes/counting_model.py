"""A worker model that checks nothing and answers at once, so that a benchmark measures only the other services."""

from __future__ import annotations

import numpy as np

from quire.worker.v1 import worker_pb2

TOKEN_ID = 100


class CountingModel:
    """Counts the tokens in each slot, and samples TOKEN_ID for each row that reaches the end of its sequence."""

    def __init__(self, *, num_blocks: int = 65_536, block_size: int = 16, max_num_seqs: int = 256) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = 8192
        self.num_host_blocks = 0
        self._num_tokens = np.zeros(max_num_seqs, np.uint32)

    def step(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        for new in plan.new_sequences:
            self._num_tokens[new.slot] = len(new.token_ids) // 4
        rows = plan.rows
        slots = np.frombuffer(rows.slots, "<u4")
        ends = np.frombuffer(rows.num_computed_tokens, "<u4") + np.frombuffer(rows.num_scheduled_tokens, "<u4")
        sampled = ends == self._num_tokens[slots]
        self._num_tokens[slots[sampled]] += 1
        wire_ids = np.frombuffer(rows.wire_ids, "<u4")[sampled]
        return worker_pb2.StepResult(
            step_id=plan.step_id,
            wire_ids=wire_ids.tobytes(),
            token_ids=np.full(len(wire_ids), TOKEN_ID, np.uint32).tobytes(),
        )
