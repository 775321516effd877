"""Sequences of random tokens on a ModelRunner, planned as a scheduler would plan them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.step_plan import U32, GeneratingSequence, NewSequence, Rows, StepPlan
from services.worker.step.model_runner import LaunchedStep, ModelRunner

# Number of plans in flight, as in the scheduler.
RUN_AHEAD = 2
# Maximum number of blocks that one plan copies.
_COPIES = 4096


def column(values: Iterable[int]) -> U32:
    return np.fromiter(values, np.uint32)


class Sequences:
    """`count` sequences on separate, scattered blocks, whose first `context` tokens are computed.

    Only one prompt is computed, and the other sequences get copies of its blocks. So a batch of any size starts
    quickly, with keys and values that the model computed.
    """

    def __init__(self, runner: ModelRunner, count: int, context: int, num_steps: int, seed: int = 0) -> None:
        """The runner must have no other sequences. `num_steps`: maximum number of steps that will run.

        Raises ValueError if the runner has too few blocks.
        """
        self.runner, self.count, self.context = runner, count, context
        limits = runner.limits
        per_sequence = -(-(context + num_steps) // limits.block_size)
        if count * per_sequence > limits.num_blocks:
            raise ValueError(
                f"{count} sequences take {count * per_sequence} blocks; the KV cache has {limits.num_blocks}"
            )
        generator = np.random.default_rng(seed)
        scattered = generator.permutation(limits.num_blocks)[: count * per_sequence].astype(np.uint32)
        self._blocks = scattered.reshape(count, per_sequence)
        self._generator = generator
        self._tokens = self.random_tokens(context)
        self._sampling = SamplingParams(temperature=0.0)
        self._computed = context - 1  # the first step computes the last token
        self._next_id, self._step_id = 1, 0
        self._alive: U32 = column([])
        runner.reset()

    def random_tokens(self, count: int) -> U32:
        return self._generator.integers(3, self.runner.limits.vocab_size, count).astype(np.uint32)

    def start(self) -> None:
        """Computes the prompt and copies its blocks to all sequences. The next step is the first decode."""
        self.run(self.prompt_plans(self._tokens))
        filled = -(-self.context // self.runner.limits.block_size)
        sources = np.tile(self._blocks[0, :filled], self.count - 1)
        destinations = self._blocks[1:, :filled].ravel()
        released, self._alive = self._alive, column([])
        plans = [self._plan((), _rows([], [], [], []), released=released)]
        for at in range(0, len(sources), _COPIES):
            window = slice(at, at + _COPIES)
            plans.append(self._plan((), _rows([], [], [], []), copies=(sources[window], destinations[window])))
        self.run(plans)

    def decode_plans(self, num_steps: int) -> list[StepPlan]:
        """Returns plans of decode steps, each of which samples a token for every sequence."""
        plans = []
        for _ in range(num_steps):
            new: tuple[NewSequence, ...] = ()
            if not len(self._alive):
                self._alive = column(range(self._next_id, self._next_id + self.count))
                self._next_id += self.count
                new = tuple(
                    self._announce(int(wire_id), slot, self._tokens, self._computed)
                    for slot, wire_id in enumerate(self._alive)
                )
            rows = _rows(self._alive, range(self.count), [1] * self.count, [self._computed] * self.count)
            plans.append(self._plan(new, rows))
            self._computed += 1
        return plans

    def prompt_plans(self, tokens: U32) -> list[StepPlan]:
        """Returns plans that release all sequences and compute one prompt in slot 0, in chunks of the maximum size."""
        released, wire_id = self._alive, self._next_id
        self._next_id += 1
        self._alive = column([wire_id])
        plans = []
        for start in range(0, len(tokens), chunk := self.runner.limits.max_num_batched_tokens):
            new = (self._announce(wire_id, 0, tokens, 0),) if start == 0 else ()
            rows = _rows([wire_id], [0], [min(chunk, len(tokens) - start)], [start])
            plans.append(self._plan(new, rows, released=released if start == 0 else None))
        return plans

    def run(self, plans: Sequence[StepPlan]) -> None:
        """Runs the plans, `RUN_AHEAD` of them in flight. Raises RuntimeError if a sequence fails."""
        in_flight: deque[LaunchedStep] = deque()
        for plan in plans:
            in_flight.append(self.runner.launch(plan, received_at=0.0))
            if len(in_flight) > RUN_AHEAD:
                self._collect(in_flight.popleft())
        while in_flight:
            self._collect(in_flight.popleft())

    def _collect(self, step: LaunchedStep) -> None:
        errors = self.runner.collect(step).errors
        if errors:
            raise RuntimeError(errors[0].message) from step.error

    def _announce(self, wire_id: int, slot: int, tokens: U32, computed: int) -> NewSequence:
        return GeneratingSequence(
            wire_id=wire_id, slot=slot, token_ids=tokens, num_prompt_tokens=len(tokens), num_computed_tokens=computed,
            block_ids=self._blocks[slot], sampling=self._sampling, choice_index=0,
        )  # fmt: skip

    def _plan(
        self, new: tuple[NewSequence, ...], rows: Rows, released: U32 | None = None,
        copies: tuple[U32, U32] | None = None,
    ) -> StepPlan:  # fmt: skip
        self._step_id += 1
        sources, destinations = copies or (column([]), column([]))
        return StepPlan(
            1, self._step_id, column([]) if released is None else released, new, rows, sources, destinations
        )


def _rows(
    wire_ids: Iterable[int] | NDArray[np.uint32], slots: Iterable[int], scheduled: Iterable[int],
    computed: Iterable[int],
) -> Rows:  # fmt: skip
    ids = column(wire_ids)
    return Rows(ids, column(slots), column(scheduled), column(computed), column([0] * (len(ids) + 1)), column([]))
