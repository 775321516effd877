"""Idle time from the worker's log of its steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.step_events import Window, idle_figures, read

ALL = Window(0.0, 100.0)


def step(time_s: float, sequences: int, idle_us: float | None, busy_us: float | None) -> dict[str, Any]:
    return {"time_s": time_s, "sequences": sequences, "device_idle_us": idle_us, "device_busy_us": busy_us}


def test_the_share_is_that_of_the_steps_with_all_sequences_in_the_window() -> None:
    events = [step(1, 128, 9000, 1000), step(11, 127, 5000, 5000), *(step(12 + i, 128, 100, 9900) for i in range(4))]
    share, gap = idle_figures("128", events, Window(10, 20), 128)
    assert share.value == pytest.approx(1.0)
    assert "4 steps" in share.note
    assert gap.value == 100


def test_what_was_not_timed_says_why() -> None:
    (untimed,) = idle_figures("8", [step(1, 8, None, None)], ALL, 8)
    assert (untimed.value, untimed.note) == (None, "the worker does not time this device")
    (absent,) = idle_figures("8", [step(1, 7, 1, 1)], ALL, 8)
    assert (absent.value, absent.note) == (None, "no step had 8 sequences")


def test_a_line_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(json.dumps(step(1, 8, 1, 1)) + '\n{"time_s": 2, "seq')
    assert len(read(tmp_path / "log")) == 1
