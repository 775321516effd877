from __future__ import annotations

import asyncio
import json
import logging
import sys

import pytest

from shared.log import JsonFormatter, TextFormatter, request_id

logger = logging.getLogger("a.logger")


def record(message: str, *arguments: object, extra: dict[str, str] | None = None) -> logging.LogRecord:
    return logger.makeRecord(logger.name, logging.WARNING, __file__, 1, message, arguments, None, extra=extra)


def as_json(one: logging.LogRecord) -> dict[str, str]:
    line = JsonFormatter("router").format(one)
    assert "\n" not in line
    entry: dict[str, str] = json.loads(line)
    return entry


def test_a_line_outside_of_requests_names_none() -> None:
    entry = as_json(record("lost %s", "it"))
    assert set(entry) == {"time", "level", "service", "logger", "message"}
    assert (entry["level"], entry["service"], entry["message"]) == ("warning", "router", "lost it")
    assert TextFormatter("router").format(record("lost it")).endswith("router WARNING lost it")


def test_a_line_names_the_request_that_its_record_names() -> None:
    one = record("failed", extra={"request_id": "abc"})
    assert as_json(one)["request_id"] == "abc"
    assert TextFormatter("scheduler").format(one).endswith("failed (request abc)")


async def test_each_task_has_its_own_request() -> None:
    async def answer(name: str) -> str:
        request_id.set(name)
        await asyncio.sleep(0)
        return as_json(record("failed"))["request_id"]

    assert list(await asyncio.gather(answer("one"), answer("two"))) == ["one", "two"]
    assert "request_id" not in as_json(record("later"))


def test_an_exception_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        one = logger.makeRecord(logger.name, logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    assert "two\nlines" in as_json(one)["exception"]
