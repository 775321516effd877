"""A peer may be silent for five times the longest pause that it has made three times of late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared import clock
from shared.pulse import MOST_S, Pulse


class Now:
    def __init__(self) -> None:
        self.seconds = 1000.0


@pytest.fixture
def now() -> Iterator[Now]:
    now = Now()
    with clock.replaced_by(lambda: now.seconds):
        yield now


@pytest.mark.usefixtures("now")
def test_a_regular_peer_has_the_least_time() -> None:
    pulse = Pulse()
    assert pulse.limit_s(2.0) == 2.0
    for _ in range(1000):
        pulse.heard(0.1)
    assert pulse.limit_s(2.0) == 2.0


@pytest.mark.usefixtures("now")
def test_a_slow_peer_has_more_time_but_not_without_end() -> None:
    pulse = Pulse()
    for pause in (0.9, 1.1, 0.1, 1.0):
        pulse.heard(pause)
    assert pulse.limit_s(2.0) == pytest.approx(4.5)
    for _ in range(3):
        pulse.heard(60.0)
    assert pulse.limit_s(2.0) == MOST_S
    assert pulse.limit_s(30.0) == 30.0


@pytest.mark.usefixtures("now")
def test_one_or_two_long_pauses_are_not_usual() -> None:
    pulse = Pulse()
    for pause in (*[0.1] * 100, 3.0, *[0.1] * 100, 1.9):
        pulse.heard(pause)
    assert pulse.limit_s(2.0) == 2.0


def test_a_pause_counts_for_a_minute_or_two(now: Now) -> None:
    pulse = Pulse()
    pulse.heard(1.0)
    pulse.heard(1.2)
    now.seconds += 61
    pulse.heard(1.0)
    assert pulse.limit_s(2.0) == 5.0
    now.seconds += 61
    pulse.heard(0.1)
    assert pulse.limit_s(2.0) == 2.0


def test_nothing_counts_after_a_long_time_without_a_message(now: Now) -> None:
    pulse = Pulse()
    for _ in range(3):
        pulse.heard(1.0)
    now.seconds += 600
    pulse.heard(0.1)
    assert pulse.limit_s(2.0) == 2.0


def test_a_peer_that_is_given_up_again_and_again_has_twice_the_time_each_time(now: Now) -> None:
    pulse = Pulse()
    limits = []
    for _ in range(5):
        limits.append(pulse.limit_s(2.0))
        pulse.gave_up()
        now.seconds += 9
    assert limits == pytest.approx([2.0, 4.0, 8.0, MOST_S, MOST_S])
    now.seconds += 2
    assert pulse.limit_s(2.0) == 2.0
