"""What a check finds."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    OK = "ok"
    # Nothing to do, and nothing that Quire uses: no GPU, no Redis.
    UNUSED = "unused"
    # Quire runs, but slowly, or not with everything.
    WARNING = "warning"
    # Quire does not start, or not as asked.
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """`subject`: one word, such as memory. `what`: what was found. `remedy`: what to do; empty if nothing."""

    subject: str
    verdict: Verdict
    what: str
    remedy: str = ""


def ok(subject: str, what: str) -> Finding:
    return Finding(subject, Verdict.OK, what)


def unused(subject: str, what: str) -> Finding:
    return Finding(subject, Verdict.UNUSED, what)


def warning(subject: str, what: str, remedy: str) -> Finding:
    return Finding(subject, Verdict.WARNING, what, remedy)


def problem(subject: str, what: str, remedy: str) -> Finding:
    return Finding(subject, Verdict.PROBLEM, what, remedy)
