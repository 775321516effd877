"""Start-up status lines travel through a pipe, and a reader that went away is no error."""

from __future__ import annotations

import os

import pytest

from shared.status import Status, StatusReporter, parse_status


def test_what_is_reported_is_read() -> None:
    read, write = os.pipe()
    reporter = StatusReporter(write)
    reporter.starting("loading weights", 0.5)
    reporter.note("# CPU blocks: 5")
    reporter.ready("ready, but slow", address="a:1")
    reporter.failed("out of memory")
    os.close(write)
    with os.fdopen(read, "rb") as lines:
        assert [parse_status(line) for line in lines] == [
            Status("starting", "loading weights", 0.5),
            Status("starting", "# CPU blocks: 5", is_note=True),
            Status("ready", "ready, but slow", facts={"address": "a:1"}),
            Status("failed", "out of memory"),
        ]


def test_a_reader_that_went_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    reporter = StatusReporter(write)
    reporter.ready()
    reporter.ready()
    os.close(write)


@pytest.mark.parametrize("line", ["", "nonsense", "[1]"])
def test_other_lines_are_told_apart(line: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting value|not a status line"):
        parse_status(line)
