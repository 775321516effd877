"""The tests' own set-up."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable

import pytest

import tests.conftest as conftest


def record_of(message: str, error: Exception) -> logging.LogRecord:
    try:
        raise error
    except type(error):
        return logging.LogRecord("asyncio", logging.ERROR, __file__, 1, message, (), sys.exc_info())


def test_only_late_events_of_closed_loops_are_not_logged() -> None:
    late = "Exception in callback PollerCompletionQueue._handle_events()"
    closed = asyncio.new_event_loop()
    closed.close()
    with pytest.raises(RuntimeError) as raised:
        closed.call_soon_threadsafe(print)
    is_shown: Callable[[logging.LogRecord], bool] = conftest._is_of_this_test
    assert not is_shown(record_of(late, raised.value))
    assert is_shown(record_of(late, ValueError("another error")))
    assert is_shown(record_of("Exception in callback answer()", raised.value))
    assert is_shown(logging.LogRecord("asyncio", logging.WARNING, __file__, 1, late, (), None))
