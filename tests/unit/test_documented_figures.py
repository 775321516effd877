"""Figures in the docs are those of the last stored run of their benchmark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def figures(name: str) -> dict[str, float]:
    found: dict[str, float] = json.loads((RESULTS / f"{name}.json").read_text())["figures"]
    return found


def document(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@pytest.mark.parametrize("fault", ["worker_killed", "scheduler_killed", "worker_suspended", "scheduler_suspended"])
@pytest.mark.parametrize(("prefix", "workers"), [("fakes", "fake"), ("model", "bundled model")])
def test_pauses_are_those_that_were_measured(fault: str, prefix: str, workers: str) -> None:
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
    }.items():
        assert f"| {row} | {found[f'{name}_median_s']:.2f} | {found[f'{name}_worst_s']:.2f} |" in text, row
    assert f"{found['requests_answered']:,.0f} requests" in text
    assert found["requests_failed"] == 0


def test_discovery_takes_as_long_as_was_measured() -> None:
    found, text = figures("discovery"), document("performance.md")
    rows = re.findall(r"^\| [^|]+ \| ([\d.]+(?:, [\d.]+)?) \|$", text.split("## Discovery")[1].split("\n## ")[0], re.M)
    values = {f"{value:.1f}" for name, value in found.items() if name.endswith("_s")}
    assert len(rows) >= 8
    for row in rows:
        assert set(row.split(", ")) <= values, row


def test_the_last_half_hour_of_chaos_is_named_as_it_was() -> None:
    text = (RESULTS / "chaos.md").read_text()
    (calls,) = re.findall(r"^(\d+) calls in ", text, re.MULTILINE)
    faults = sum(int(count) for count in re.findall(r"^\| [^|]+ \| (\d+) \|", text, re.MULTILINE))
    assert f"{int(calls):,} calls under {faults} faults" in document("testing.md")
    assert f"{int(calls):,} requests, {faults} faults" in document("comparison.md")
    assert ". 0 leaks." in text
    assert "findings" not in text
