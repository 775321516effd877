from __future__ import annotations

from pathlib import Path

import pytest

from shared import host_cores


def test_hyper_threads_of_one_core_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(host_cores, "_siblings", lambda cpu: f"{cpu % 2},{cpu % 2 + 2}")
    monkeypatch.setattr(host_cores, "_quota", lambda _: None)
    assert host_cores.physical_cores() == 2


@pytest.mark.parametrize(
    ("content", "expected"), [("max 100000", None), ("150000 100000", 1), ("400000 100000", 4), ("50000 100000", 1)]
)
def test_a_container_quota_is_rounded_down_to_whole_cores(tmp_path: Path, content: str, expected: int | None) -> None:
    (tmp_path / "cpu.max").write_text(content)
    assert host_cores._quota(tmp_path / "cpu.max") == expected


def test_no_quota_where_there_is_no_file(tmp_path: Path) -> None:
    assert host_cores._quota(tmp_path / "cpu.max") is None
