"""Step times are learned, chunks kept within them, and no more plans in flight than are of use."""

from __future__ import annotations

import math
import random
from array import array

import pytest

from services.scheduler.core.budget import StepBudget
from services.scheduler.core.config import CoreConfig
from services.scheduler.core.pacing import RunAhead, StepTimes, TurnRate, pairs
from services.scheduler.core.plan import StepPlan, StepResult
from services.scheduler.core.request import Generate, SequenceRequest
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.sequence import Sequence


class Device:
    """Takes what a linear model says, give or take some noise."""

    def __init__(self, base: float = 0.004, per_token: float = 1e-4, per_pair: float = 2e-8, noise: float = 0.02):
        self.base, self.per_token, self.per_pair, self.noise = base, per_token, per_pair, noise
        self.chance = random.Random(1)

    def seconds(self, num_tokens: int, num_pairs: float) -> float:
        exact = self.base + self.per_token * num_tokens + self.per_pair * num_pairs
        return exact * self.chance.uniform(1 - self.noise, 1 + self.noise)


def learned(device: Device, num_steps: int = 300) -> StepTimes:
    times = StepTimes()
    for _ in range(num_steps):
        num_tokens = device.chance.randint(1, 600)
        num_pairs = pairs(device.chance.randint(0, 4000), num_tokens)
        times.observe(num_tokens, num_pairs, device.seconds(num_tokens, num_pairs))
    return times


def test_the_device_s_step_times_are_learned_and_followed_when_they_change() -> None:
    device = Device()
    times = learned(device)
    for factor in (1.0, 3.0):
        device.base, device.per_token, device.per_pair = 0.004 * factor, 1e-4 * factor, 2e-8 * factor
        for _ in range(1500):
            num_tokens = device.chance.randint(1, 600)
            num_pairs = pairs(device.chance.randint(0, 4000), num_tokens)
            times.observe(num_tokens, num_pairs, device.seconds(num_tokens, num_pairs))
        for num_tokens, position in ((1, 100), (256, 0), (512, 3000)):
            exact = device.base + device.per_token * num_tokens + device.per_pair * pairs(position, num_tokens)
            assert times.seconds(num_tokens, pairs(position, num_tokens)) == pytest.approx(exact, rel=0.05)


def test_many_equal_steps_do_not_make_the_fit_forget_the_others() -> None:
    device = Device()
    times = learned(device)
    for _ in range(20_000):
        times.observe(16, 16 * 500, device.seconds(16, 16 * 500))
    exact = device.base + device.per_token * 400 + device.per_pair * pairs(0, 400)
    assert times.seconds(400, pairs(0, 400)) == pytest.approx(exact, rel=0.2)


def test_the_noise_of_decodes_is_not_taken_for_what_a_prompt_costs() -> None:
    device = Device(noise=0.3)
    times = learned(device)
    for step in range(50_000):
        num_pairs = 2 * (32 + step % 600)
        times.observe(2, num_pairs, device.seconds(2, num_pairs))
    exact = device.base + device.per_token * 500 + device.per_pair * pairs(0, 500)
    assert times.seconds(500, pairs(0, 500)) == pytest.approx(exact, rel=0.2)


def test_features_that_go_together_are_not_set_against_each_other() -> None:
    device = Device(noise=0.3)
    times = learned(device)
    for _ in range(5000):
        num_tokens = device.chance.randint(100, 900)
        num_pairs = pairs(device.chance.randint(0, 1000), num_tokens)
        seconds = device.seconds(num_tokens, num_pairs) + 1e-4 * num_tokens
        times.observe(num_tokens, num_pairs, seconds, num_tokens - device.chance.randint(0, 1))
    exact = device.base + device.per_token * 500 + device.per_pair * pairs(0, 500)
    assert times.seconds(500, pairs(0, 500), 500) == pytest.approx(exact + 500e-4, rel=0.2)
    assert times.seconds(500, pairs(0, 500)) == pytest.approx(exact, rel=0.5)


def test_a_device_that_is_shared_for_a_while_is_followed_within_some_steps() -> None:
    device = Device()
    times = learned(device)
    exact = device.base + device.per_token * 500 + device.per_pair * pairs(0, 500)
    for factor in (2.0, 1.0):
        for _ in range(12):
            times.observe(500, pairs(0, 500), factor * device.seconds(500, pairs(0, 500)))
        assert times.seconds(500, pairs(0, 500)) == pytest.approx(factor * exact, rel=0.1)
        chunk = times.max_chunk(0, 0.1)
        assert times.chunk_seconds(0, chunk) <= 0.1001
        assert times.chunk_seconds(0, chunk + 1) > 0.1


def test_what_a_prompt_s_log_probabilities_cost_is_learned_beside_the_rest() -> None:
    device, times = Device(), StepTimes()
    per_logprob, position = 3e-4, 1000
    for _ in range(100):
        num_tokens = device.chance.randint(1, 600)
        times.observe(num_tokens, pairs(position, num_tokens), device.seconds(num_tokens, pairs(position, num_tokens)))
    # Nothing is known yet: the first such chunk is about half as long as another one.
    plain = times.max_chunk(0, 0.1)
    assert plain / 2 < times.max_chunk(0, 0.1, with_logprobs=True) < plain * 0.6
    for _ in range(300):
        num_tokens, num_logprobs = device.chance.randint(1, 600), device.chance.choice([0, 100, 300])
        num_pairs, num_tokens = pairs(position, num_tokens), num_tokens + num_logprobs
        seconds = device.seconds(num_tokens, num_pairs) + per_logprob * num_logprobs
        times.observe(num_tokens, num_pairs, seconds, num_logprobs)
    for _ in range(5000):  # Steps without any do not make it forget.
        num_tokens = device.chance.randint(1, 600)
        times.observe(num_tokens, pairs(position, num_tokens), device.seconds(num_tokens, pairs(position, num_tokens)))
    exact = (device.per_token + per_logprob) * 200 + device.per_pair * pairs(position, 200)
    assert times.chunk_seconds(position, 200, with_logprobs=True) == pytest.approx(exact, rel=0.05)
    chunk = times.max_chunk(position, 0.1, with_logprobs=True)
    assert times.chunk_seconds(position, chunk, with_logprobs=True) <= 0.1001
    assert times.chunk_seconds(position, chunk + 1, with_logprobs=True) > 0.1


def test_decodes_alone_are_not_taken_for_what_a_long_prompt_costs() -> None:
    times = StepTimes()
    for _ in range(20):
        times.observe(1, 100.0, 0.003)
    assert times.trusted_tokens == 256
    times.observe(256, pairs(0, 256), 0.03)
    assert times.trusted_tokens == 512


@pytest.mark.parametrize("position", [0, 500, 20_000])
@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.1])
def test_a_chunk_takes_the_time_it_was_given(position: int, seconds: float) -> None:
    times = learned(Device())
    chunk = times.max_chunk(position, seconds)
    assert times.chunk_seconds(position, chunk) <= seconds * 1.001
    assert times.chunk_seconds(position, chunk + 1) > seconds
    assert times.max_chunk(position, 0.0) == 0


@pytest.mark.parametrize(
    ("hop", "run", "depth"),
    [(0.0003, 0.1, 1), (0.0003, 0.004, 2), (0.0003, 0.0015, 2), (0.0009, 0.0004, 4), (0.1, 0.001, 8)],
)
def test_as_many_plans_are_in_flight_as_hide_the_round_trip(hop: float, run: float, depth: int) -> None:
    run_ahead = RunAhead(None)
    for _ in range(100):
        run_ahead.observe(run + hop, run)
    assert run_ahead.depth == depth


def test_a_depth_that_was_given_stays() -> None:
    with pytest.raises(ValueError, match="run-ahead is 0: must be at least 1"):
        RunAhead(0)
    run_ahead = RunAhead(3)
    run_ahead.observe(1.0, 0.001)
    assert run_ahead.depth == 3


def test_a_plan_waits_until_those_in_flight_have_nearly_ended() -> None:
    run_ahead = RunAhead(None)
    assert run_ahead.seconds_to_hold(10.0) == 0.0
    run_ahead.sent(10.0, 0.2)
    # A quarter of what they take is left to a worker that is faster than was thought.
    assert run_ahead.seconds_to_hold(10.0) == pytest.approx(0.15)
    assert run_ahead.seconds_to_hold(10.15) == 0.0
    run_ahead.sent(10.15, 0.04)
    assert run_ahead.answered(10.25) == 10.0
    # Of the second, which could not begin before. 10 ms are left in any case.
    assert run_ahead.seconds_to_hold(10.25) == pytest.approx(0.03)
    run_ahead.lost()
    assert run_ahead.seconds_to_hold(10.25) == 0.0
    for _ in range(100):
        run_ahead.observe(0.045, 0.04)
    run_ahead.sent(11.0, 0.04)
    assert run_ahead.seconds_to_hold(11.0) == pytest.approx(0.02), "twice the way to the worker and back is left, too"


def test_a_depth_that_was_given_is_always_filled() -> None:
    run_ahead = RunAhead(2)
    run_ahead.sent(10.0, 0.2)
    assert run_ahead.seconds_to_hold(10.0) == 0.0


def answer(core: Scheduler[SequenceRequest], plan: StepPlan[SequenceRequest], seconds: float) -> None:
    core.apply(StepResult(plan.step_id, plan.sampling_wire_ids, [9] * len(plan.sampling_wire_ids), (), seconds))


@pytest.mark.parametrize(("target", "most"), [(0.02, 0.022), (0.001, 0.016), (None, math.inf)])
def test_a_long_prompt_leaves_decodes_the_time_between_tokens_they_were_promised(
    target: float | None, most: float
) -> None:
    """With a target that decodes alone miss, they wait at most twice as long as they would without prompts."""
    core: Scheduler[SequenceRequest] = Scheduler(
        CoreConfig(
            num_blocks=4096, block_size=16, max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=32_768,
            target_tbt_s=target,
        )
    )  # fmt: skip
    device = Device(noise=0.0)
    for key in range(16):
        prompt = array("I", [key] * 100)
        core.submit(SequenceRequest(key, prompt, Generate(2000)))
    for _ in range(20):
        plan = core.schedule()
        assert plan is not None
        answer(core, plan, device.seconds(plan.num_tokens, plan.num_pairs))
    core.submit(SequenceRequest("long", array("I", [99] * 30_000), Generate(1)))
    slowest, num_steps = 0.0, 0
    while core.num_running + core.num_waiting > 16:
        plan = core.schedule()
        assert plan is not None
        seconds = device.seconds(plan.num_tokens, plan.num_pairs)
        slowest, num_steps = max(slowest, seconds), num_steps + 1
        answer(core, plan, seconds)
    assert slowest <= most
    if target is None:
        assert num_steps == 15, "whole steps, where nothing limits them"


def test_prompts_in_between_make_no_step_of_decodes_look_longer() -> None:
    """A step with prompts takes far longer here than the weights of decodes say: the next plan would be held too long
    behind decodes."""
    core: Scheduler[SequenceRequest] = Scheduler(
        CoreConfig(num_blocks=256, block_size=16, max_num_seqs=16, max_num_batched_tokens=2048, max_model_len=4096)
    )
    for key in range(10):
        core.submit(SequenceRequest(key, array("I", [key] * 100), Generate(1000)))
    for step in range(300):
        plan = core.schedule()
        assert plan is not None
        is_decode = plan.num_tokens == len(plan.rows)
        answer(core, plan, 0.042 if is_decode else 0.12 + 2e-4 * plan.num_tokens)
        if step % 3 == 0:
            core.submit(SequenceRequest(f"prompt {step}", array("I", [step] * (100 + step)), Generate(1)))
    plan = core.schedule()
    assert plan is not None
    assert plan.num_tokens == len(plan.rows) == 10
    assert core.expected_seconds(plan) == pytest.approx(0.042, rel=0.05)


def test_whoever_is_refused_comes_again_when_it_would_have_had_its_turn() -> None:
    rate = TurnRate()
    assert rate.seconds_until_turn(500) == 1.0  # nothing is known yet
    for second in range(30):
        rate.observe(float(second), num_started=50 * second)
    assert rate.seconds_until_turn(500) == pytest.approx(10.0)
    assert rate.seconds_until_turn(5) == 1.0
    for second in range(30, 60):
        rate.observe(float(second), num_started=1500)
    assert rate.seconds_until_turn(500) == 60.0


def test_a_busy_time_does_not_make_steps_of_prompts_alone_longer() -> None:
    """Somebody may come meanwhile, whatever the last steps took."""
    device = Device()
    times = learned(device)
    for _ in range(100):
        times.observe(1, 100.0, 0.004)
    for _ in range(300):  # All have prompts, and their time hardly depends on how long they are.
        num_tokens = device.chance.randint(100, 900)
        times.observe(num_tokens, pairs(0, num_tokens), 0.09)
    assert times.seconds(1, 1) > 0.008
    assert times.short_step_seconds == pytest.approx(0.004, rel=0.1)


def test_once_nobody_shares_the_device_short_steps_end_the_slowness() -> None:
    times = learned(Device())
    alone, decodes = times.seconds(500, pairs(0, 500)), times.seconds(20, 2000)
    for _ in range(8):
        times.observe(500, pairs(0, 500), 3 * alone)
    for _ in range(400):
        times.observe(20, 2000, decodes, num_rows=20)
    assert times.seconds(20, 2000) == pytest.approx(decodes, rel=0.2)


def test_one_long_step_is_no_slow_device() -> None:
    times = learned(Device())
    # The fit has seen many, so that one says little; what follows the last steps heeds no more than twice the last.
    alone = times.seconds(500, pairs(0, 500))
    times.observe(500, pairs(0, 500), 20 * alone)
    for _ in range(8):
        times.observe(500, pairs(0, 500), alone)
    assert times.seconds(500, pairs(0, 500)) < 1.2 * alone


def test_decodes_of_many_sequences_are_steps_without_prompts() -> None:
    times = StepTimes()
    for _ in range(100):
        times.observe(200, 20_000, 0.01, num_rows=200)
    assert times.short_step_seconds == pytest.approx(0.01)


def budget_of(times: StepTimes, num_decodes: int) -> StepBudget:
    config = CoreConfig(
        num_blocks=256,
        block_size=16,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        max_model_len=4096,
        target_tbt_s=0.05,
    )
    return StepBudget(config, times, num_decodes, 100.0 * num_decodes)


@pytest.mark.parametrize("num_decodes", [0, 1])
def test_what_a_step_takes_in_any_case_is_part_of_its_target(num_decodes: int) -> None:
    """A busy device made all steps with prompts longer by 30 ms, whatever their length, and decodes by none."""
    device, times = Device(base=0.03), StepTimes()
    for _ in range(100):
        times.observe(1, 100.0, 0.001)
    for _ in range(1500):
        num_tokens, position = device.chance.randint(50, 300), device.chance.randint(0, 4000)
        num_pairs = pairs(position, num_tokens)
        times.observe(num_tokens, num_pairs, device.seconds(num_tokens, num_pairs))
    assert times.seconds(0, 0) > 0.02
    sequence = Sequence(SequenceRequest("a", array("I", [1] * 4000), Generate(1)), 0)
    chunk = budget_of(times, num_decodes).max_chunk(sequence)
    assert chunk > 100
    assert times.seconds(num_decodes + chunk, pairs(0, chunk) + 100.0 * num_decodes) == pytest.approx(0.05, rel=0.02)
