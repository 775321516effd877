"""The phases of a worker's start are measured while they are reported."""

from __future__ import annotations

from services.worker.progress import Phase, StartClock, per_percent


def test_each_phase_has_the_time_until_the_next_and_sentences_belong_to_it() -> None:
    now, reported = 0.0, []
    clock = StartClock(lambda detail, fraction: reported.append((detail, fraction)), clock=lambda: now)
    clock.report(Phase.START)
    now = 2.0
    load = per_percent(clock.report, Phase.LOAD)
    for at, fraction in ((2.0, 0.0), (3.0, 0.501), (3.5, 0.502), (5.0, 1.0)):
        now = at
        load(fraction)
    now = 6.0
    clock.report("a sentence")
    assert clock.seconds == {Phase.START: 2.0}
    now = 7.0
    clock.report(Phase.WARM_UP)
    now = 7.5
    clock.report(Phase.LOAD)  # a phase that comes twice
    now = 8.5
    clock.end()
    now = 99.0
    clock.end()
    assert clock.seconds == {Phase.START: 2.0, Phase.LOAD: 6.0, Phase.WARM_UP: 0.5}
    assert reported == [
        ("starting", None), ("loading weights", 0.0), ("loading weights", 0.501), ("loading weights", 1.0),
        ("a sentence", None), ("warming up", None), ("loading weights", None),
    ]  # fmt: skip
