"""Structured outputs go through preemption, the loss of a worker and the move to another group, and are what they are
undisturbed: tokens and log probabilities, each once.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLParserLimits

import shared.grammar
from quire.worker.v1 import worker_pb2
from services.router.columns import ids_to_bytes
from services.router.constraints.values import TokenConstraints
from services.scheduler.converters import TokenLogprob, logprobs_from_proto, plan_to_proto, result_from_proto
from services.scheduler.core.config import PreemptionMode
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.sequence import FinishReason, Sequence
from services.scheduler.worker_request import WorkerRequest
from services.worker.sampling import slot_constraints
from services.worker.sampling.grammars import Grammars
from services.worker.service.converters import plan_from_proto, result_to_proto
from services.worker.step.model_runner import LaunchedStep, ModelRunner
from tests.integration.engine import test_structured_output
from tests.integration.engine.test_structured_output import STRUCTURES, VOCAB_SIZE, is_allowed, make
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level
from tests.unit.worker.tiny_models import save_model

pytestmark = pytest.mark.usefixtures("one_thread")
NUM_SEQUENCES = 12


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_model(path, "Llama", vocab_size=VOCAB_SIZE, eos_token_id=EOS_TOKEN_ID)
    return path


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(byte_level().to_str().encode(), VOCAB_SIZE, (EOS_TOKEN_ID,))


class Engine(test_structured_output.Engine):
    """Keeps log probabilities, and can be stopped between any two steps."""

    def __init__(self, runner: ModelRunner, run_ahead: int = 2, mode: PreemptionMode = PreemptionMode.AUTO) -> None:
        super().__init__(runner, run_ahead)
        config = replace(
            self.core.config,
            num_host_blocks=runner.limits.num_host_blocks,
            seconds_per_swapped_block=0.0,
            preemption_mode=mode,
        )
        self.core: Scheduler[WorkerRequest] = Scheduler(config)
        self.logprobs: dict[int, list[TokenLogprob]] = {}
        self.in_flight: deque[LaunchedStep] = deque()

    def step(self) -> bool:
        """Plans what may be planned and takes one result; False once there is nothing to wait for."""
        while len(self.in_flight) < self.run_ahead and (plan := self.core.schedule()) is not None:
            wire = worker_pb2.StepPlan.FromString(plan_to_proto(plan, epoch=1).SerializeToString())
            self.in_flight.append(self.runner.launch(plan_from_proto(wire), received_at=time.monotonic()))
        self.core.check_integrity()
        asked = self.core.preparations.take_wanted()
        for preparation in asked:
            self.prepare(preparation)
        if not self.in_flight:
            return bool(asked)
        message = result_to_proto(self.runner.collect(self.in_flight.popleft()))
        logprobs = logprobs_from_proto(message.logprobs)
        outcome = self.core.apply(result_from_proto(message))
        for sequence, output_index, token_id, index in outcome.tokens:
            key = key_of(sequence)
            assert output_index == len(self.outputs[key])
            self.outputs[key].append(token_id)
            self.logprobs.setdefault(key, []).append(logprobs[index])
        for end in outcome.finished:
            self.ends[key_of(end.sequence)] = end.failure.message if end.failure else end.reason
        return True

    def lose_worker(self) -> None:
        self.in_flight.clear()
        assert self.core.reset() == []
        self.runner.reset()


def key_of(sequence: Sequence[WorkerRequest]) -> int:
    assert isinstance(sequence.request.key, int)
    return sequence.request.key


def submit_all(engine: Engine) -> None:
    """Every kind of structure, greedy and sampled."""
    chance = random.Random(6)
    for key in range(NUM_SEQUENCES):
        prompt = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 60))]
        structure = STRUCTURES[key % len(STRUCTURES)]
        constraints = TokenConstraints(structure.to_grammar(), min_tokens=4, end_token_ids=ids_to_bytes([EOS_TOKEN_ID]))
        temperature = (0.0, 0.8, 1.0)[key % 3]
        engine.submit(key, prompt, constraints, 90, temperature=temperature, seed=key, logprobs=2)


Outcome = tuple[dict[int, list[int]], dict[int, list[TokenLogprob]], dict[int, Any]]


def outcome_of(engine: Engine) -> Outcome:
    return engine.outputs, engine.logprobs, engine.ends


@pytest.fixture(scope="module")
def undisturbed(directory: Path, grammars: Grammars) -> Outcome:
    """One after the other, with room for everything."""
    runner = make(directory, grammars, max_num_seqs=1, max_num_batched_tokens=256)
    if not runner.ops.batch_invariant:
        pytest.skip("the compiled kernels are not built")
    engine = Engine(runner, run_ahead=1)
    submit_all(engine)
    while engine.step():
        pass
    assert engine.core.counters.preemptions == 0
    ended = [key for key in range(NUM_SEQUENCES) if engine.ends[key] is FinishReason.STOP]
    assert len(ended) > NUM_SEQUENCES // 2
    for key in ended:
        assert is_allowed(STRUCTURES[key % len(STRUCTURES)], engine.text(key))
    return outcome_of(engine)


@pytest.mark.parametrize(("mode", "num_host_blocks"), [(PreemptionMode.SWAP, 40), (PreemptionMode.RECOMPUTE, 0)])
@pytest.mark.parametrize("run_ahead", [1, 2, 3])
def test_preemption_in_the_middle_changes_nothing(
    directory: Path,
    grammars: Grammars,
    undisturbed: Outcome,
    run_ahead: int,
    mode: PreemptionMode,
    num_host_blocks: int,
) -> None:
    runner = make(directory, grammars, num_blocks=20, max_num_batched_tokens=24, num_host_blocks=num_host_blocks)
    engine = Engine(runner, run_ahead, mode)
    submit_all(engine)
    num_preempted_in_the_middle = 0
    while engine.step():
        waiting = [sequence for sequence in engine.core._roster.by_key.values() if not sequence.wire_id]
        num_preempted_in_the_middle += sum(sequence.num_output_tokens > 0 for sequence in waiting)
    assert num_preempted_in_the_middle > 0, "blocks were to run out"
    assert (engine.core.counters.swapped_in_blocks > 0) == (num_host_blocks > 0)
    assert outcome_of(engine) == undisturbed


@pytest.mark.parametrize("run_ahead", [1, 3])
def test_a_worker_that_is_lost_again_and_again_changes_nothing(
    directory: Path, grammars: Grammars, undisturbed: Outcome, run_ahead: int
) -> None:
    engine = Engine(make(directory, grammars, max_num_batched_tokens=64), run_ahead)
    submit_all(engine)
    num_losses = 0
    while engine.step():
        if engine.core.counters.steps >= 9 * (num_losses + 1):
            engine.lose_worker()
            num_losses += 1
    assert num_losses > 8
    assert outcome_of(engine) == undisturbed


@pytest.mark.parametrize("steps_per_loss", [1_000, 30])
@pytest.mark.parametrize("run_ahead", [1, 3])
def test_sequences_whose_lexers_are_full_go_on_with_their_own(
    directory: Path, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch, run_ahead: int, steps_per_loss: int
) -> None:
    monkeypatch.setattr(shared.grammar, "_limits", lambda: LLParserLimits(max_lexer_states=150, verbose_errors=False))
    monkeypatch.setattr(slot_constraints, "_LEAST_PROGRESS", 1)
    few = Grammars(byte_level().to_str().encode(), VOCAB_SIZE, (EOS_TOKEN_ID,))
    engine = Engine(make(directory, few, max_num_batched_tokens=40, num_blocks=40), run_ahead)
    submit_all(engine)
    outgrown: Counter[int] = Counter()
    num_losses = 0
    while engine.step():
        outgrown.update(key_of(sequence) for sequence in engine.core.sequences if sequence.has_outgrown)
        if engine.core.counters.steps >= steps_per_loss * (num_losses + 1):
            engine.lose_worker()
            num_losses += 1
    assert len(outgrown) > 1
    assert outcome_of(engine) == undisturbed


def test_a_group_that_takes_over_goes_on_where_the_lost_one_was(
    directory: Path, grammars: Grammars, undisturbed: Outcome
) -> None:
    """Each time another kind of group: its blocks, slots, chunks and plans in flight are its own."""
    kinds = [{"block_size": 8, "max_num_seqs": 8}, {"block_size": 16, "max_num_seqs": 5}]
    groups = [make(directory, grammars, max_num_batched_tokens=40, **kind) for kind in kinds]
    engine = Engine(groups[0])
    submit_all(engine)
    num_moves = 0
    while engine.step():
        if engine.core.counters.steps == 25:
            engine.lose_worker()
            num_moves += 1
            successor = Engine(groups[num_moves % 2], run_ahead=1 + num_moves % 3)
            for sequence in engine.core.drain():
                successor.core.adopt(sequence)
            successor.outputs, successor.logprobs, successor.ends = outcome_of(engine)
            engine = successor
    assert num_moves > 3
    assert outcome_of(engine) == undisturbed
