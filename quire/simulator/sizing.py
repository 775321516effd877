"""Finds the smallest number of workers with which a cluster meets a latency target on a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.simulator.cluster import Layout, SimulationResult, simulate, with_groups
from quire.simulator.report import Report, Target, report_of
from quire.simulator.traces import Request


class Trial(NamedTuple):
    """A simulated cluster and its results."""

    layout: Layout
    result: SimulationResult
    report: Report


def run_trial(layout: Layout, requests: Sequence[Request], num_processes: int) -> Trial:
    result = simulate(layout, requests, num_processes)
    return Trial(layout, result, report_of(layout, requests, result))


def smallest_cluster(
    layout: Layout,
    requests: Sequence[Request],
    target: Target,
    *,
    most: int,
    num_processes: int,
    on_report: Callable[[Report], None],
) -> Trial | None:
    """Returns the smallest cluster that meets the target, or None if `most` worker groups do not meet it.

    Doubles the number of groups until the target is met, then bisects. The search assumes that more workers are never
    worse.
    """

    def trial(num_groups: int) -> Trial:
        made = run_trial(with_groups(layout, num_groups), requests, num_processes)
        on_report(made.report)
        return made

    best: Trial | None = None
    too_few, tried = 0, 1
    while best is None:
        made = trial(tried)
        if made.report.meets(target):
            best = made
        elif tried == most:
            return None
        else:
            too_few, tried = tried, min(2 * tried, most)
    while best.layout.num_groups - too_few > 1:
        made = trial((best.layout.num_groups + too_few) // 2)
        if made.report.meets(target):
            best = made
        else:
            too_few = made.layout.num_groups
    return best
