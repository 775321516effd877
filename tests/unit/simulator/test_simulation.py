"""The simulator against what can be worked out without it."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quire.simulator.cluster import Layout, simulate, with_groups
from quire.simulator.device import Device, DeviceError, StepSeconds, read_device
from quire.simulator.group import Overheads
from quire.simulator.report import Report, Target, report_of, samples_of, table
from quire.simulator.sizing import smallest_cluster
from quire.simulator.traces import Request, poisson
from services.scheduler.core.config import CoreConfig

NONE = Overheads(request=0, hop=0, plan=0, plan_row=0)
CORE = CoreConfig(num_blocks=4096, block_size=16, max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=8192)
STEP = StepSeconds(base=0.005, per_token=0.0001, per_sequence=0.0, per_kv_token=1e-7, per_pair=1e-9)
ALONE = Layout(1, 1, 1, CORE, STEP, NONE)


def report(layout: Layout, requests: list[Request], num_processes: int = 1) -> Report:
    return report_of(layout, requests, simulate(layout, requests, num_processes))


def test_one_request_takes_as_long_as_its_steps() -> None:
    overheads = Overheads(request=0.5, hop=0.25, plan=0.125, plan_row=0.0625)
    layout = replace(ALONE, overheads=overheads, run_ahead=1)
    (one,) = simulate(layout, [Request(2.0, 100, 3, (1,))]).outcome.served
    prompt = 0.005 + 100 * 0.0001 + 100 * 1e-7 + 5050 * 1e-9
    # Request, plan, to the worker, step, back, and on to the client.
    assert one.first_token_s == pytest.approx(2 + 0.5 + 0.1875 + 0.25 + prompt + 0.25 + 0.25)
    decodes = sum(0.005 + 0.0001 + position * (1e-7 + 1e-9) for position in (101, 102))
    # No plan ahead: every step waits for the way back and forth.
    assert one.last_token_s == pytest.approx(one.first_token_s + decodes + 2 * (0.1875 + 0.25 + 0.25))
    assert one.num_tokens == 3


def test_run_ahead_hides_the_way_to_the_worker() -> None:
    layout = replace(ALONE, overheads=Overheads(request=0, hop=0.002, plan=0.0001, plan_row=0))
    (one,) = simulate(layout, [Request(0.0, 10, 200, (1,))]).outcome.served
    assert (one.last_token_s - one.first_token_s) / 199 == pytest.approx(0.0051, rel=0.02)


def test_whoever_comes_during_a_long_step_is_in_the_next_one() -> None:
    """The plan that follows a step of 2,048 tokens leaves shortly before that step ends, and not with it."""
    layout = replace(ALONE, overheads=Overheads(request=0, hop=0.0005, plan=0.0001, plan_row=0))
    long, short = Request(0.0, 7000, 1, (1,)), Request(0.1, 16, 1, (2,))
    _, second = simulate(layout, [long, short]).outcome.served
    whole_steps = 2 * (0.005 + 2048 * 0.0001)
    assert whole_steps < second.first_token_s < whole_steps * 1.15


def test_a_crowd_with_one_prompt_lets_others_pass_while_that_is_computed() -> None:
    """One search of the queue sets 64 aside; the next one goes on behind them, before any step has ended."""
    crowd = [Request(0.0, 160, 1, (1,))] * 200
    *_, other = simulate(replace(ALONE, run_ahead=2), [*crowd, Request(0.0, 16, 1, (2,))]).outcome.served
    first_step, second_step = (STEP.of_prompt(num_tokens) for num_tokens in (160, 16))
    assert other.first_token_s == pytest.approx(first_step + second_step, rel=0.01)


@pytest.mark.thorough
def test_waiting_is_that_of_a_queue_with_one_server() -> None:
    """One sequence at a time, of one step: M/D/1, whose mean wait is ρ / 2(1 - ρ) services (Pollaczek, Khinchine)."""
    service, load = 0.01, 0.7
    layout = replace(
        ALONE, step=StepSeconds(service, 0, 0, 0, 0), run_ahead=1,
        core=replace(CORE, max_num_seqs=1, max_num_queued_reqs=100_000, enable_prefix_caching=False),
    )  # fmt: skip
    requests = poisson(load / service, 400, 8, 1, spread=0, seed=5)
    times = samples_of(requests, simulate(layout, requests)).time_to_first_token
    assert times.min() == pytest.approx(service)
    assert times.mean() == pytest.approx(service * (1 + load / (2 * (1 - load))), rel=0.04)


@pytest.fixture(scope="module")
def chats() -> list[Request]:
    """Some of them turns of the same conversation."""
    chance = random.Random(11)
    requests = []
    for index in range(400):
        conversation = chance.randrange(40)
        content = (conversation, *(1000 * conversation + turn for turn in range(chance.randint(1, 4))))
        requests.append(Request(index * 0.05, 512 * len(content) - 100, chance.randint(1, 80), content))
    return requests


def test_processes_change_nothing(chats: list[Request]) -> None:
    layout = replace(ALONE, num_routers=2, num_schedulers=3, num_groups=5, overheads=Overheads())
    one, two, three = (report(layout, chats, num_processes) for num_processes in (1, 2, 3))
    assert one == two == three
    assert one.num_completed == len(chats)
    assert 0.3 < one.prefix_cache_hit_share < 1


def test_every_token_is_counted_and_followed_by_a_time(chats: list[Request]) -> None:
    result = simulate(ALONE, chats)
    samples = samples_of(chats, result)
    assert [one.num_tokens for one in result.outcome.served] == [request.num_output_tokens for request in chats]
    assert len(samples.time_between_tokens) == sum(request.num_output_tokens - 1 for request in chats)
    total = samples.request_latency - samples.time_to_first_token
    assert samples.time_between_tokens.sum() == pytest.approx(total.sum())


def test_little_s_law(chats: list[Request]) -> None:
    """Requests in the cluster, on average, are arrivals per second times the seconds each stays."""
    made = report(ALONE, chats)
    inside = np.array(made.series.num_running) + np.array(made.series.num_waiting)
    assert made.request_latency is not None
    assert inside.sum() == pytest.approx(len(chats) * made.request_latency.mean, rel=0.2)


def test_full_queues_send_a_request_to_two_others_and_then_refuse_it() -> None:
    layout = replace(
        ALONE, num_schedulers=4, num_groups=4, core=replace(CORE, max_num_seqs=1, max_num_queued_reqs=1)
    )  # fmt: skip
    crowd = [Request(0.03 * index, 500, 100, (index,)) for index in range(40)]
    result = simulate(layout, crowd)
    assert len(result.refused) + len(result.outcome.served) == 40
    assert {len(result.refused_by[index]) for index in result.refused} == {3}
    assert all(len(set(schedulers)) == len(schedulers) for schedulers in result.refused_by.values())
    moved = [one for one in result.outcome.served if one.request_index in result.refused_by]
    assert moved
    assert all(one.scheduler not in result.refused_by[one.request_index] for one in moved)
    made = report(layout, crowd)
    assert not made.meets(Target(1e9, 1e9, 99))
    assert made.meets(Target(1e9, 1e9, 50)) == (len(result.refused) <= 20)
    assert json.loads(json.dumps(made.as_dict()))["time_to_first_token"]["p99"] is None


def test_requests_refused_when_nothing_else_comes_for_long_are_placed_anew() -> None:
    layout = replace(
        ALONE, num_schedulers=4, num_groups=4, overheads=Overheads(),
        core=replace(CORE, max_num_seqs=1, max_num_queued_reqs=1),
    )  # fmt: skip
    crowd = [Request(0.098, 500, 100, (index,)) for index in range(9)] + [Request(10.0, 10, 1, (99,))]
    result = simulate(layout, crowd)
    assert result.refused_by
    assert len(result.outcome.served) + len(result.refused) == 10
    assert len(result.outcome.served) >= 5


def test_groups_of_one_scheduler_wait_for_its_decisions() -> None:
    """Deciding takes as long as a step: two groups of one scheduler get half of what two schedulers' get."""
    busy = replace(ALONE, overheads=Overheads(request=0, hop=0, plan=0.05, plan_row=0), num_groups=2, run_ahead=1)
    crowd = [Request(0.0, 10, 100, (index,)) for index in range(40)]
    one, two = (report(replace(busy, num_schedulers=number), crowd) for number in (1, 2))
    assert one.duration_s == pytest.approx(2 * two.duration_s, rel=0.15)


def test_what_exceeds_the_context_is_left_out() -> None:
    result = simulate(ALONE, [Request(0.0, 9000, 1, (1,)), Request(1.0, 10, 1, (2,))])
    assert result.too_long == [0]
    assert [one.request_index for one in result.outcome.served] == [1]


@pytest.mark.thorough
def test_the_fewest_workers_that_meet_a_target() -> None:
    requests = poisson(30, 20, 400, 60, spread=0.5, seed=1)
    layout = replace(ALONE, num_schedulers=32, num_groups=32)
    tried: list[Report] = []
    target = Target(time_to_first_token_s=0.25, time_between_tokens_s=0.06)
    best = smallest_cluster(layout, requests, target, most=32, num_processes=1, on_report=tried.append)
    assert best is not None
    assert best.report.meets(target)
    assert 1 < best.report.num_groups < 32
    fewer = with_groups(layout, best.report.num_groups - 1)
    assert not report(fewer, requests).meets(target)
    assert len(tried) <= 10
    assert smallest_cluster(layout, requests, Target(1e-6, 1), most=2, num_processes=1, on_report=tried.append) is None


def test_percentiles_of_the_target_are_those_that_count() -> None:
    made = report(ALONE, poisson(5, 60, 400, 60, spread=0.5, seed=1))
    assert made.time_to_first_token is not None
    assert made.time_to_first_token.p50 < made.time_to_first_token.p99
    middle = (made.time_to_first_token.p50 + made.time_to_first_token.p99) / 2
    assert made.meets(Target(middle, math.inf, 50))
    assert not made.meets(Target(middle, math.inf, 99))
    assert f"{1000 * made.time_to_first_token.p99:,.1f}" in table(made)


def test_the_fit_finds_the_terms_and_none_below_zero() -> None:
    chance = np.random.default_rng(0)
    features = np.column_stack((np.ones(60), *(chance.uniform(1, top, 60) for top in (2000, 200, 1e5, 1e6))))
    truth = StepSeconds(0.004, 2e-5, 0.0, 3e-7, 1e-8)
    seconds = truth.predict(features) * chance.uniform(0.99, 1.01, 60)
    fitted = StepSeconds.fit(features, seconds)
    assert fitted.base == pytest.approx(truth.base, rel=0.1)
    assert fitted.per_token == pytest.approx(truth.per_token, rel=0.1)
    assert fitted.per_sequence < 1e-6
    assert fitted.per_kv_token == pytest.approx(truth.per_kv_token, rel=0.1)
    assert fitted.per_pair == pytest.approx(truth.per_pair, rel=0.1)
    assert StepSeconds.fit(features, np.maximum(0.01 - features[:, 1] * 1e-6, 1e-3)).per_token == 0


def test_a_device_survives_its_file_and_nonsense_is_refused(tmp_path: Path) -> None:
    device = Device(STEP, 100, 16, 1600, 8, 256, origin={"model": "m"})
    device.save(tmp_path / "device.json")
    assert read_device(tmp_path / "device.json") == device
    for text in ("", "{}", '{"step": {"base": 1}}', "[1]"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(DeviceError, match=r"bad\.json"):
            read_device(tmp_path / "bad.json")
    with pytest.raises(DeviceError, match="No such file"):
        read_device(tmp_path / "none.json")
