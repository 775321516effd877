"""Figures in the docs are those of the last stored run of their benchmark."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAUSES = ["worker_killed", "scheduler_killed", "worker_suspended", "scheduler_suspended"]


def figures(name: str) -> dict[str, float]:
    found: dict[str, float] = json.loads((RESULTS / f"{name}.json").read_text())["figures"]
    return found


def document(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@pytest.mark.parametrize(
    ("prefix", "workers", "fault"),
    [
        *product(("fakes",), ("fake",), PAUSES),
        *product(("model",), ("bundled model",), PAUSES),
        *product(("links",), ("fake",), ["worker_cut_off", "scheduler_cut_off", "scheduler_cut_off_from_workers"]),
    ],
)
def test_pauses_are_those_that_were_measured(prefix: str, workers: str, fault: str) -> None:
    found = figures("pauses")
    name = f"{prefix}_{fault}"
    plan = "–"
    if f"{name}_plan_p99_ms" in found:
        plan = f"{found[f'{name}_plan_median_ms']:,.0f}, {found[f'{name}_plan_p99_ms']:,.0f} ms"
    cells = [
        fault.replace("_", " "),
        workers,
        f"{found[f'{prefix}_rounds']:.0f}",
        f"{found[f'{name}_streams']:.0f}",
        plan,
        *(f"{found[f'{name}_{what}_ms']:,.0f} ms" for what in ("median", "worst", "median_bound")),
        f"{found[f'{name}_within_bound_percent']:.3g} %",
    ]
    assert f"| {' | '.join(cells)} |" in document("performance.md")


def test_joining_takes_as_long_as_was_measured() -> None:
    found, text = figures("joining"), document("performance.md")
    for name, row in {
        "worker_in_use": "worker: until it has run a step",
        "scheduler_in_use": "scheduler: until it runs a sequence",
        "router_in_use": "router: until it has received a prompt",
        "model_listed": "model: until `/v1/models` lists it",
        "model_gone": "model whose scheduler is told to end: until `/v1/models` does not list it",
        "model_lost": "model whose scheduler is killed: until `/v1/models` does not list it",
    }.items():
        assert f"| {row} | {found[f'{name}_median_s']:.2f} | {found[f'{name}_worst_s']:.2f} |" in text, row
    assert f"{found['requests_answered']:,.0f} requests" in text
    assert found["requests_failed"] == 0


def test_discovery_takes_as_long_as_was_measured() -> None:
    found, text = figures("discovery"), document("performance.md")
    for row, names in {
        "since the first part has started": ("cold_start",),
        "since the last part has started": ("cold_start_from_last",),
        "a worker that joins is known to all schedulers (10 workers): median, worst": ("joined_median", "joined_worst"),
        "with a lease of 10 s (10 workers): median, worst": ("killed_median", "killed_worst"),
        "Redis restarted empty: until it has all parts again, since it listens": ("restart_registered_again",),
        "the same after FLUSHALL": ("flush_registered_again",),
        "after the restart and after FLUSHALL": ("restart_lists_fresh_again", "flush_lists_fresh_again"),
        "the primary of three Sentinels is killed: until the replica is the only primary": (
            "primary_killed_only_primary",
        ),
        "SENTINEL FAILOVER: until the replica is the only primary": ("failover_only_primary",),
    }.items():
        values = ", ".join(f"{found[f'{name}_s']:.1f}" for name in names)
        assert f"{row} | {values} |" in text, row
    for name in ("primary_killed", "failover"):
        values = f"{found[f'{name}_all_renewed_s']:.1f}, {found[f'{name}_lists_fresh_again_s']:.1f}"
        assert f"until every part has renewed its lease there, and until no list is stale | {values} |" in text
    assert not [name for name in found if name.endswith("parts_forgotten") and found[name]]
    phases = ("cold_start", "restart", "flush", "failover", "primary_killed")
    for row, name, form in (
        ("calls per second", "calls_per_s", "{:,.0f}"),
        ("Redis, of one core", "redis_busy_percent", "{:.1f} %"),
        ("all parts, of one core", "parts_busy_percent", "{:.0f} %"),
    ):
        assert f"| {row} | {' | '.join(form.format(found[f'{phase}_{name}']) for phase in phases)} |" in text, row


def test_the_last_half_hour_of_chaos_is_named_as_it_was() -> None:
    text = (RESULTS / "chaos.md").read_text()
    (calls,) = re.findall(r"^(\d+) calls in ", text, re.MULTILINE)
    faults = sum(int(count) for count in re.findall(r"^\| [^|]+ \| (\d+) \|", text, re.MULTILINE))
    (excused,) = re.findall(r"(\d+) excused", text)
    testing, comparison = document("testing.md"), document("comparison.md")
    assert f"{int(calls):,} calls under {faults} faults" in testing
    assert f"; {excused} were excused." in testing
    assert f"{int(calls):,} requests, {faults} faults: none lost, none changed; {excused} went through" in comparison
    assert ". 0 leaks." in text
    assert "findings" not in text


def test_killed_parts_lose_what_was_measured() -> None:
    rows = {row["scenario"]: row for row in json.loads((RESULTS / "chaos_dynamo.json").read_text())["rows"]}
    assert len(rows) == 6
    for name, row in rows.items():
        cells = [row[cell] for cell in ("calls", "failed", "cut_with_router", "refused", "worst_pause", "back_after")]
        told = [name, *map(str, cells), row["dynamo"], row["dynamo_failed"]]
        assert f"| {' | '.join(told)} |" in document("performance.md")
    text = document("comparison.md")
    worker, scheduler = (rows[f"the only {part}"] for part in ("worker", "scheduler"))
    one, two = (rows[name]["cut_with_router"] for name in ("the only router", "one of two routers"))
    assert f"{worker['failed']} of 800 fail, worst pause {worker['worst_pause']} s with the start" in text
    assert f"{scheduler['failed']} of 800, worst pause {scheduler['worst_pause']} s |" in text
    assert f"the {one} streams that it was serving ({two} with two routers)" in text
    assert f"| {rows['one of four workers']['failed']} of 800 |" in text


def test_virtual_time_found_what_was_measured() -> None:
    speed, seeds = figures("virtual_time"), figures("virtual_bugs")
    text = document("testing.md")
    assert f"{speed['seeds']:,.0f} seeds ran at {speed['seeds per hour']:,.0f} an hour" in text
    assert f"with {speed['requests per seed']:.0f} requests and {speed['faults per seed']:.1f} faults each" in text
    assert speed["broken promises"] == 0
    *others, (last, most) = sorted(seeds.items(), key=lambda found: found[1])
    assert f"All {len(seeds)} planted bugs were found: {len(others)} within {others[-1][1]:,.0f} seeds each" in text
    assert f"the last one ({last}) within {most:,.0f}" in text


def test_the_churn_is_that_which_was_measured() -> None:
    found, text = figures("chaos_churn"), document("performance.md")
    assert f"{found['added']} workers are added and {found['removed']} removed in 12 minutes" in text
    assert f"under {found['requests']:,} requests" in text
    assert f"all {found['answered']:,} were answered, and none was lost, changed" in text
    assert not any(found[name] for name in ("refused", "lost", "different", "hung"))


def test_more_parts_carry_what_was_measured() -> None:
    found, text = figures("scaling"), document("performance.md")
    names = [name.removesuffix("_requests_per_s") for name in found if name.endswith("_requests_per_s")]
    assert len(names) == 10
    for name in names:
        rates = (f"{found[f'{name}_{what}_per_s']:,.0f}" for what in ("requests", "tokens"))
        times = (
            f"{found[f'{name}_{part}_ms_per_request']:.1f}" for part in ("router", "scheduler", "worker", "client")
        )
        assert f"| {' | '.join((*name.split('_'), *rates, *times))} |" in text


def test_the_comparison_with_published_claims_has_the_figures_that_were_measured() -> None:
    text = document("comparison.md")
    kv, hits, peers = figures("kv_memory"), figures("hit_rate"), figures("peers")

    def spread(values: list[float], digits: int) -> str:
        return f"{min(values):.{digits}f} to {max(values):.{digits}f}"

    waste = {name: kv[f"{name}_waste_percent"] for name in ("azure_code", "sharegpt", "alpaca")}
    told = "{azure_code:.1f} % (Azure code), {sharegpt:.1f} % (ShareGPT-like), {alpaca:.1f} % (Alpaca-like)"
    assert f"| {told.format(**waste)} |" in text
    contiguous = [value for name, value in kv.items() if name.endswith("_waste_contiguous_percent")]
    assert f"contiguous reservation of 8,192 tokens: {spread(contiguous, 0)} % |" in text
    shared = {
        trace: [kv[f"{trace}_saved_by_sharing_n{n}_percent"] for n in (2, 4, 6)] for trace in ("alpaca", "sharegpt")
    }
    assert f"| {spread(shared['alpaca'], 1)} %, and {spread(shared['sharegpt'], 1)} % |" in text
    assert f"| {figures('batching')['continuous_over_static']:.2f} on a CPU |" in text
    placed, in_turn = hits["placement_4_25"], hits["round_robin_4_25"]
    assert f"hits {placed:.1f} % instead of {in_turn:.1f} % with 4 schedulers" in text
    assert f"| {figures('deciding')['caching_us_per_block']:.1f} µs per block" in text
    for row, ours, theirs in (
        ("{} times vLLM's tokens per second, measured side by side", "quire", "vllm"),
        ("{} times its tokens per second", "quire", "llama_cpp"),
        ("| the same in 8 bits | {} times |", "quire_int8", "llama_cpp_q8_0"),
    ):
        ratios = [peers[f"{ours}_tokens_per_s_{n}"] / peers[f"{theirs}_tokens_per_s_{n}"] for n in (1, 8, 32)]
        assert row.format(spread(ratios, 1 if theirs != "llama_cpp" else 2)) in text, row
    ready = [spread([peers[f"{name}_ready_s"] for name in names], 1) for names in (
        ("llama_cpp", "llama_cpp_q8_0"), ("quire", "quire_int8"),
    )]  # fmt: skip
    assert f"{ready[0]} s (llama.cpp), {peers['vllm_ready_s']:.0f} s (vLLM), both on that CPU | {ready[1]} s |" in text
    served = json.loads((RESULTS / "gpu_serve_llama-8b_bfloat16.json").read_text())["figures"]
    values = {one["name"]: one["value"] for one in served}
    rates = [values[f"concurrency {n}, 1000 tokens in and out: output"] for n in (1, 32, 128)]
    assert "H200, Llama-3.1-8B's shape: {:,.0f}, {:,.0f} and {:,.0f} |".format(*rates) in text


def test_an_endpoint_that_is_down_costs_what_was_measured() -> None:
    found, text = figures("tracing"), document("performance.md")
    for name, row in {
        "no_endpoint_again": "none, the second fleet",
        "refused": "refuses connections",
        "silent": "never answers",
        "answering": "takes all spans",
    }.items():
        short, token = found[f"{name}_short_answers_ratio"], found[f"{name}_per_token_ratio"]
        assert f"| {row} | {short:.2f} | {token:.2f} |" in text, row
