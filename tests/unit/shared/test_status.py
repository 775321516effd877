"""Start-up status lines travel through a pipe, and a reader that went away is no error."""

from __future__ import annotations

import logging
import os

import pytest

from shared.status import Status, StatusReporter, WarningNotes, parse_status, warnings_as_notes


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


def test_warnings_of_the_start_are_notes_each_once_and_not_without_end() -> None:
    read, write = os.pipe()
    log = logging.getLogger("services.test")
    with warnings_as_notes(StatusReporter(write)):
        log.info("not this")
        for number in (1, 1, *range(100)):
            log.warning("no stream: reason %d", number)
        try:
            raise ValueError("no tokenizer")
        except ValueError:
            log.exception("never told, as there were too many")
    log.warning("after the start")
    os.close(write)
    with os.fdopen(read, "rb") as lines:
        notes = [parse_status(line) for line in lines]
    assert all(note.is_note for note in notes)
    assert [note.detail for note in notes][:2] == ["no stream: reason 1", "no stream: reason 0"]
    assert len(notes) == WarningNotes.MAX_NOTES


def test_an_exception_of_the_start_is_told_with_its_reason() -> None:
    read, write = os.pipe()
    with warnings_as_notes(StatusReporter(write)):
        try:
            raise ValueError("no tokenizer")
        except ValueError:
            logging.getLogger("services.test").exception("the session failed")
    os.close(write)
    with os.fdopen(read, "rb") as lines:
        assert [parse_status(line).detail for line in lines] == ["the session failed: ValueError('no tokenizer')"]
