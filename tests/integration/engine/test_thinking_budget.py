"""Reasoning ends at its budget, with plans in flight, in a crowd, and through preemption and the loss of a worker."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from services.router.columns import ids_to_bytes
from services.router.constraints.values import BadWords, ThinkingLimit, TokenConstraints
from services.worker.sampling.grammars import Grammars
from services.worker.sampling.slot_constraints import SlotConstraints
from services.worker.sampling.stage import I64
from services.worker.sampling.token_mask import TokenMask
from services.worker.step.generation import DecoderGeneration
from services.worker.step.model_runner import ModelRunner
from tests.integration.engine.test_structured_output import STRUCTURES, VOCAB_SIZE, is_allowed, make
from tests.integration.engine.test_structured_recovery import Engine, Outcome, outcome_of
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level
from tests.unit.worker.tiny_models import save_model

pytestmark = pytest.mark.usefixtures("one_thread")
BEGIN, END = VOCAB_SIZE - 2, VOCAB_SIZE - 1
MAX_TOKENS = 60
NUM_SEQUENCES = 12
# By key: the budget, and whether the output begins inside the reasoning.
LIMITS = {key: (key * 3 % 20, key % 2 == 0) for key in range(NUM_SEQUENCES)}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_model(path, "Llama", vocab_size=VOCAB_SIZE, eos_token_id=EOS_TOKEN_ID)
    return path


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(byte_level().to_str().encode(), VOCAB_SIZE, (EOS_TOKEN_ID,))


def submit_all(engine: Engine) -> None:
    chance = random.Random(6)
    for key, (budget, is_inside) in LIMITS.items():
        prompt = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 60))]
        limit = ThinkingLimit(budget, END, None if is_inside else BEGIN)
        # Where the model would have to begin by itself, its output so far says that it has.
        output = () if is_inside else (70, BEGIN)
        temperature = (0.0, 0.8, 1.0)[key % 3]
        engine.submit(
            key,
            prompt,
            TokenConstraints(thinking=limit),
            MAX_TOKENS,
            output,
            temperature=temperature,
            seed=key,
            logprobs=0,
        )


@pytest.fixture(scope="module")
def undisturbed(directory: Path, grammars: Grammars) -> Outcome:
    runner = make(directory, grammars, max_num_seqs=1, max_num_batched_tokens=256)
    if not runner.ops.batch_invariant:
        pytest.skip("the compiled kernels are not built")
    engine = Engine(runner, run_ahead=1)
    submit_all(engine)
    while engine.step():
        pass
    num_forced = 0
    for key, (budget, is_inside) in LIMITS.items():
        output = engine.outputs[key][0 if is_inside else 2 :]
        if EOS_TOKEN_ID not in output[:budget]:
            assert END in output[: budget + 1], key
            num_forced += output.index(END) == budget
    assert num_forced > NUM_SEQUENCES // 2
    return outcome_of(engine)


def test_tokens_before_the_end_are_those_without_a_budget(
    directory: Path, grammars: Grammars, undisturbed: Outcome
) -> None:
    engine = Engine(make(directory, grammars))
    submit_all(engine)
    free = Engine(make(directory, grammars))
    chance = random.Random(6)
    for key, (_, is_inside) in LIMITS.items():
        prompt = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 60))]
        output, temperature = () if is_inside else (70, BEGIN), (0.0, 0.8, 1.0)[key % 3]
        free.submit(key, prompt, None, MAX_TOKENS, output, temperature=temperature, seed=key, logprobs=0)
    while free.step():
        pass
    outputs = undisturbed[0]
    for key in LIMITS:
        end = outputs[key].index(END) if END in outputs[key] else len(outputs[key])
        assert free.outputs[key][:end] == outputs[key][:end]


@pytest.mark.parametrize("run_ahead", [1, 2, 3])
def test_a_crowd_and_preemption_change_nothing(
    directory: Path, grammars: Grammars, undisturbed: Outcome, run_ahead: int
) -> None:
    engine = Engine(make(directory, grammars, num_blocks=20, max_num_batched_tokens=24), run_ahead)
    submit_all(engine)
    while engine.step():
        pass
    assert engine.core.counters.preemptions > 0, "blocks were to run out"
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
    assert num_losses > 3
    assert outcome_of(engine) == undisturbed


def constraints_of(runner: ModelRunner) -> SlotConstraints:
    generation = runner._generation
    assert isinstance(generation, DecoderGeneration)
    return generation._constraints


def test_steps_wait_for_no_tokens_once_the_reasoning_is_over(directory: Path, grammars: Grammars) -> None:
    runner = make(directory, grammars)
    engine = Engine(runner, run_ahead=1)
    engine.submit(0, [5], TokenConstraints(thinking=ThinkingLimit(3, END)), 30, temperature=0.0, logprobs=0)
    engine.submit(1, [6], TokenConstraints(bad_words=BadWords.of([[9]])), 5, temperature=0.0, logprobs=0)
    while len(engine.outputs[0]) < 8 and engine.step():
        pass
    assert engine.outputs[0].index(END) == 3
    assert not constraints_of(runner).watched.any()


@pytest.mark.parametrize("run_ahead", [1, 3, 8])
@pytest.mark.parametrize(
    ("begin", "budget", "is_forced"), [(None, 20, True), (BEGIN, 31_999, False), (BEGIN, 20, False)]
)
def test_steps_wait_for_no_tokens_while_the_budget_is_far(
    directory: Path,
    grammars: Grammars,
    monkeypatch: pytest.MonkeyPatch,
    run_ahead: int,
    begin: int | None,
    budget: int,
    is_forced: bool,
) -> None:
    """Only the steps that the tokens in flight could bring to the budget wait, and only the forced token has a mask."""
    runner = make(directory, grammars)
    constraints = constraints_of(runner)
    make_mask, masks = constraints.mask, []

    def mask(slots: I64, device: torch.device) -> TokenMask | None:
        masks.append(make_mask(slots, device))
        return masks[-1]

    monkeypatch.setattr(constraints, "mask", mask)
    engine = Engine(runner, run_ahead)
    limit = ThinkingLimit(budget, END, begin)
    engine.submit(0, [5], TokenConstraints(thinking=limit), 50, temperature=0.0, logprobs=0)
    while engine.step():
        pass
    output = engine.outputs[0]
    assert len(output) > 30
    assert BEGIN not in output
    assert not is_forced or output.index(END) == budget
    # Each wait is for a step in flight.
    assert len(masks) <= (run_ahead if is_forced else 0)
    assert [len(one.rows) for one in masks if one is not None] == ([1] if is_forced else [])


def test_a_budget_stands_beside_other_constraints(directory: Path, grammars: Grammars) -> None:
    """Allowed tokens and bad words are about the answer. A grammar without reasoning is not broken."""
    engine = Engine(make(directory, grammars), run_ahead=2)
    limit = ThinkingLimit(2, END)
    engine.submit(
        0,
        [5],
        TokenConstraints(thinking=limit, allowed_token_ids=ids_to_bytes([40, 41]), bad_words=BadWords.of([[END]])),
        9,
        logprobs=0,
    )
    engine.submit(1, [5], TokenConstraints(STRUCTURES[1].to_grammar(), thinking=limit), 60, logprobs=0)
    while engine.step():
        pass
    assert engine.outputs[0][2] == END
    assert set(engine.outputs[0][:2] + engine.outputs[0][3:]) <= {40, 41}
    assert is_allowed(STRUCTURES[1], engine.text(1))


def test_tags_that_the_model_does_not_have_are_named(directory: Path, grammars: Grammars) -> None:
    engine = Engine(make(directory, grammars))
    engine.submit(0, [5], TokenConstraints(thinking=ThinkingLimit(2, VOCAB_SIZE)), logprobs=0)
    while engine.step():
        pass
    assert f"the model has {VOCAB_SIZE} tokens" in str(engine.ends[0])
