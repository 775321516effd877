"""What a start looks like, line by line in a log and as a table on a terminal."""

from __future__ import annotations

import os
import pty
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from unittest import mock

import pytest

from quire.cli import serve
from quire.cli.display import PlainDisplay
from quire.cli.live_display import LiveDisplay
from shared.status import Status


@contextmanager
def terminal() -> Iterator[list[str]]:
    """Standard error is a real one meanwhile. Its lines are in the list afterwards, without colours and movements."""
    master, slave = pty.openpty()
    lines: list[str] = []
    variables = {"TERM": "xterm", "COLUMNS": "100", "LINES": "20"}
    with mock.patch.dict(os.environ, variables), os.fdopen(slave, "w") as screen, redirect_stderr(screen):
        yield lines
    shown = b""
    with suppress(OSError):  # Linux's way to say that nobody is at the other end.
        while data := os.read(master, 65536):
            shown += data
    os.close(master)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    lines += [line for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_a_log_has_a_line_per_news(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainDisplay(verbose=False) as display:
        display.on_status("router", Status("starting", "waiting for a scheduler"))
        display.on_status("worker", Status("starting", "waiting for a scheduler"))
        display.on_status("router", Status("starting", "waiting for a scheduler"))
        display.on_line("worker", "nobody asked for this")
        display.on_status("router", Status("ready"))
        display.settle()
        display.note("stopping")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "router: waiting for a scheduler",
        "worker: waiting for a scheduler",
        "router: ready",
        "stopping",
    ]


def test_a_log_tells_progress_in_quarters(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay(verbose=False)
    for hundredth in range(101):
        display.on_status("worker", Status("starting", "loading weights", hundredth / 100))

    assert capsys.readouterr().err.splitlines() == [f"worker: loading weights {n}%" for n in (0, 25, 50, 75, 100)]


def test_a_failure_is_left_to_the_stacks_last_words(capsys: pytest.CaptureFixture[str]) -> None:
    PlainDisplay(verbose=False).on_status("worker", Status("failed", "there is no such model"))

    assert capsys.readouterr().err == ""


def test_a_verbose_log_has_the_parts_own_lines(capsys: pytest.CaptureFixture[str]) -> None:
    PlainDisplay(verbose=True).on_line("worker", "[loud] words")

    assert capsys.readouterr().err == "worker | [loud] words\n"


def test_a_terminal_keeps_a_row_per_part() -> None:
    with terminal() as lines, LiveDisplay(("router", "worker", "gateway"), verbose=False) as display:
        display.on_status("worker", Status("starting", "loading weights", 0.5))
        display.on_status("gateway", Status("failed", "no [port]"))
        display.on_line("worker", "nobody asked for this")
        display.on_status("router", Status("ready"))

    router, worker, gateway = [line.split() for line in lines[-3:]]
    assert router == ["✓", "router", "ready"]
    assert worker[1:4] == ["worker", "loading", "weights"]
    assert worker[4].startswith("━" * 12)  # of 24
    assert gateway == ["✗", "gateway", "no", "[port]"]
    assert not any("nobody" in line for line in lines)


def test_after_the_start_a_terminal_gets_lines() -> None:
    with terminal() as lines, LiveDisplay(("router", "worker"), verbose=False) as display:
        display.on_status("worker", Status("ready"))
        display.settle()
        display.note("worker: was killed by SIGKILL; starting it again in 0.1 s")
        display.on_status("worker", Status("starting", "loading weights"))
        display.on_status("worker", Status("starting", "loading weights"))
        display.on_status("worker", Status("failed", "told elsewhere"))

    assert lines[-3].split() == ["✓", "worker", "ready"]
    assert lines[-2:] == ["worker: was killed by SIGKILL; starting it again in 0.1 s", "worker: loading weights"]


def test_a_verbose_terminal_has_the_parts_own_lines_above_the_table() -> None:
    with terminal() as lines, LiveDisplay(("worker",), verbose=True) as display:
        display.on_line("worker", "[loud] words")
        display.on_status("worker", Status("ready"))

    assert "worker | [loud] words" in lines
    assert lines[-1].split() == ["✓", "worker", "ready"]


def test_serve_takes_the_display_that_fits() -> None:
    with terminal():
        assert isinstance(serve.start_display(("worker",), verbose=False), LiveDisplay)
    with open(os.devnull, "w") as log, redirect_stderr(log):
        assert isinstance(serve.start_display(("worker",), verbose=False), PlainDisplay)
