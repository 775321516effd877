"""How many workers a trace needs to be served within a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.simulator.cluster import Layout, SimulationResult, simulate, with_groups
from quire.simulator.report import Report, Target, report_of
from quire.simulator.traces import Request


class Trial(NamedTuple):
    """A cluster that was simulated."""

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
    """The fewest worker groups that meet the target, or None where `most` of them do not.

    It doubles their number until they do, then halves the range, as more workers are taken never to be worse.
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
