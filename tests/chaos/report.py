"""Shows what a run found."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.checker import Verdict
from tests.chaos.fleet import Shape
from tests.chaos.history import Fault, Record, Skipped
from tests.chaos.pauses import KindFigures, Pause, by_kind, delays_of_whole_answers, longest_pauses
from tests.chaos.run import Result

# Maximum number of findings that are shown, and of pauses.
_MAX_SHOWN, _MAX_PAUSES = 30, 12


def summary(records: Sequence[Record], verdict: Verdict, result: Result, shape: Shape) -> str:
    """Returns the report as Markdown. `shape`: of the fleet."""
    counts = ", ".join(f"{number} {what}" for what, number in verdict.calls.most_common())
    leaks = "Unknown" if result.leaks is None else len(result.leaks)
    lines = [
        f"{verdict.calls.total()} calls in {result.seconds:.0f} s: {counts}. {leaks} leaks.",
        *_excuses(verdict),
        "",
        *table(by_kind(records, verdict.broken)),
    ]
    if pauses := longest_pauses(records, _MAX_PAUSES, shape):
        lines += [
            "",
            "The longest pauses, each with the faults that began or lasted during it. *Nobody*: seconds in which "
            "faults left nobody who could have served it. *Rest*: what the fleet took beyond that.",
            "",
            *_pauses(pauses),
            "",
        ]
    if (delay := next(delays_of_whole_answers(records, shape), None)) is not None:
        lines += [
            f"Of the answers that came whole, one ({delay.request}) was delayed most: by {delay.seconds:.1f} s under "
            f"{len(delay.faults)} faults, {delay.without_service:.1f} s of which nobody could have served it.",
            "",
        ]
    skipped = {record for record in records if isinstance(record, Skipped)}
    lines += [f"Not carried out: {one.kind} ({one.reason})." for one in sorted(skipped, key=lambda one: one.kind)]
    problems = [*map(str, verdict.findings), *(f"leak: {leak}" for leak in result.leaks or ())]
    if problems:
        lines += ["", f"{len(problems)} findings:", *(f"- {problem}" for problem in problems[:_MAX_SHOWN])]
    return "\n".join(lines)


def _excuses(verdict: Verdict) -> list[str]:
    if not verdict.excuses:
        return []
    return ["", f"Excused by: {', '.join(f'{what} {number}' for what, number in verdict.excuses.most_common())}."]


def _pauses(pauses: Sequence[Pause]) -> list[str]:
    def in_words(fault: Fault, pause: Pause) -> str:
        times = f"{fault.start - pause.start:+.1f} s, {fault.end - fault.start:.1f} s"
        return f"{fault.kind} {', '.join(fault.targets)} ({times})"

    return [
        "| at (s) | pause (s) | nobody (s) | rest (s) | request | faults (start, from that of the pause; length) |",
        "|---:|---:|---:|---:|---|---|",
        *(
            f"| {pause.start:.0f} | {pause.seconds:.1f} | {pause.without_service:.1f} | {pause.rest:.1f} | "
            f"{pause.request} | {'; '.join(in_words(fault, pause) for fault in pause.faults)} |"
            for pause in pauses
        ),
    ]


def table(figures: Sequence[KindFigures]) -> list[str]:
    return [
        "| fault | count | calls under way | median pause (s) | worst pause (s) | lost, different or hung | excused |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {one.kind} | {one.count} | {one.calls} | {one.median_pause:.1f} | {one.worst_pause:.1f} | "
            f"{one.failed} | {one.excused} |"
            for one in figures
        ),
    ]
