"""Three restarts in any minute."""

from __future__ import annotations

from quire.cli.restarts import Restarts


def test_each_restart_within_a_minute_waits_longer_and_the_fourth_is_refused() -> None:
    policy = Restarts()

    assert [policy.pause(now) for now in (0.0, 1.0, 2.0, 3.0)] == [0.1, 0.5, 2.0, None]


def test_a_crash_counts_for_a_minute() -> None:
    policy = Restarts()

    assert [policy.pause(now) for now in (0.0, 30.0, 59.0, 60.0, 89.0, 90.0)] == [0.1, 0.5, 2.0, 2.0, None, 2.0]
