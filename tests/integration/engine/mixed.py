"""Core and runner over sequences of every kind at once: free and constrained ones, ones that want their prompts' log
probabilities, and ones that are pooled. Each is checked against transformers.
"""

from __future__ import annotations

import random
import struct
import time
from array import array
from collections import deque

import numpy as np
import torch
import transformers

from quire.inference.v1 import constraints_pb2, pooling_pb2, sampling_pb2
from quire.worker.v1 import worker_pb2
from services.scheduler.converters import WorkerResult, plan_to_proto, result_from_proto
from services.scheduler.core.config import CoreConfig
from services.scheduler.core.outcome import StepOutcome
from services.scheduler.core.request import Generate, Pool, Work
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.worker_request import WorkerRequest
from services.worker.plan.step_plan import F32
from services.worker.pooling.config import PoolingKind
from services.worker.service.converters import plan_from_proto, result_to_proto
from services.worker.step.model_runner import LaunchedStep, ModelRunner
from tests.unit.worker.tiny_encoders import hidden_states, normalized
from tests.unit.worker.tiny_models import VOCAB_SIZE, reference_logits

ALLOWED = list(range(3, VOCAB_SIZE, 5))
CLOSE = 1e-4


class MixedEngine:
    """Two plans in flight, in one thread. Sequence `key` is of kind `key % 4`, in the order above."""

    def __init__(self, runner: ModelRunner, kind: PoolingKind) -> None:
        limits = runner.limits
        self.runner, self.kind = runner, kind
        self.core: Scheduler[WorkerRequest] = Scheduler(
            CoreConfig(
                num_blocks=limits.num_blocks,
                block_size=limits.block_size,
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_model_len=min(limits.max_model_len, limits.num_blocks * limits.block_size),
            )
        )
        self.prompts: dict[int, list[int]] = {}
        self.outputs: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[float]] = {}  # of the prompt's tokens but the first
        self.vectors: dict[int, F32] = {}
        self.steps: list[LaunchedStep] = []

    def submit(self, key: int, prompt: list[int], max_tokens: int) -> None:
        self.prompts[key], self.outputs[key], self.logprobs[key] = prompt, [], []
        sampling, constraints, pooling = sampling_pb2.SamplingParams(temperature=0), None, None
        work: Work = Generate(max_tokens)
        match key % 4:
            case 1:
                constraints = constraints_pb2.TokenConstraints(allowed_token_ids=array("I", ALLOWED).tobytes())
            case 2:
                sampling.prompt_logprobs = 1
            case 3:
                work = Pool(needs_all_tokens=self.kind is PoolingKind.MEAN)
                pooling = pooling_pb2.PoolingParams()
        self.core.submit(
            WorkerRequest(
                key, array("I", prompt), work, sampling=sampling, constraints=constraints, pooling=pooling,
                num_prompt_logprobs=0 if key % 4 == 2 else None,
            )
        )  # fmt: skip

    def submit_some(self, count: int, seed: int, longest_prompt: int, longest_output: int) -> None:
        """Some of them begin alike."""
        chance = random.Random(seed)
        common = [chance.randrange(3, VOCAB_SIZE) for _ in range(longest_prompt // 2)]
        for key in range(count):
            own = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, longest_prompt // 2))]
            self.submit(key, common[: chance.randint(0, len(common))] + own, chance.randint(2, longest_output))

    def run(self) -> None:
        in_flight: deque[LaunchedStep] = deque()
        while True:
            while len(in_flight) < 2 and (plan := self.core.schedule()) is not None:
                wire = worker_pb2.StepPlan.FromString(plan_to_proto(plan, epoch=1).SerializeToString())
                in_flight.append(self.runner.launch(plan_from_proto(wire), received_at=time.monotonic()))
            self.core.check_integrity()
            if not in_flight:
                return
            self.steps.append(in_flight[0])
            result = result_to_proto(self.runner.collect(in_flight.popleft()))
            assert not result.errors
            taken = result_from_proto(result)
            self._take(self.core.apply(taken), taken)

    def check(self, model: transformers.PreTrainedModel) -> None:
        """Asserts that all of it is what transformers makes of these prompts."""
        for key, prompt in self.prompts.items():
            if key % 4 == 3:
                hidden = hidden_states(model, prompt)
                expected = normalized(hidden.mean(0) if self.kind is PoolingKind.MEAN else hidden[-1])
                np.testing.assert_allclose(self.vectors[key], expected, atol=1e-5)
                continue
            output = self.outputs[key]
            logits = reference_logits(model, prompt + output).float()
            before_output, drawn = logits[len(prompt) - 1 : -1], torch.tensor(output)[:, None]
            best = before_output[:, ALLOWED] if key % 4 == 1 else before_output
            assert key % 4 != 1 or {*output} <= {*ALLOWED}
            assert (best.amax(-1, keepdim=True) - before_output.gather(1, drawn)).amax() < CLOSE
            if key % 4 == 2:
                following = torch.tensor(prompt[1:])[:, None]
                wanted = logits.log_softmax(-1)[: len(prompt) - 1].gather(1, following)[:, 0]
                assert torch.allclose(torch.tensor(self.logprobs[key]), wanted, atol=CLOSE)

    def _take(self, outcome: StepOutcome[WorkerRequest], result: WorkerResult) -> None:
        for sequence, _, token_id, _ in outcome.tokens:
            assert isinstance(sequence.request.key, int)
            self.outputs[sequence.request.key].append(token_id)
        for sequence, index in outcome.prompt_logprobs:
            assert isinstance(sequence.request.key, int)
            entries = result.prompt_logprobs[index]
            self.logprobs[sequence.request.key] += struct.unpack(f"<{entries.num_tokens}f", entries.logprobs)
        for end in outcome.finished:
            assert isinstance(end.sequence.request.key, int)
            if end.embedding is not None:
                self.vectors[end.sequence.request.key] = np.frombuffer(end.embedding, np.float32)
