"""Logging to standard error, as text for people or as JSON for log collectors.

Nothing is logged for a request or a step of the model that succeeds. Prompts are logged only by a router with
--log-prompts, and answers never. Lines about one request have its id, which clients know as `x-request-id`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar

# Id of the request that the current task works on; empty outside of requests. A line about another request names it by
# `extra={"request_id": …}`.
request_id: ContextVar[str] = ContextVar("request_id", default="")


class JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if found := _request_id_of(record):
            entry["request_id"] = found
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class TextFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__(f"%(asctime)s {service} %(levelname)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        found = _request_id_of(record)
        return super().formatMessage(record) + (f" (request {found})" if found else "")


def _request_id_of(record: logging.LogRecord) -> str:
    """Returns the id that the record names, or else the current task's."""
    found = getattr(record, "request_id", None)
    return request_id.get() if found is None else str(found)


def configure_logging(service: str, level: str = "info", format: str = "text") -> None:  # noqa: A002 - the option's name
    """Configures the root logger. Call it once, at a service's start. `format` is text or json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service) if format == "json" else TextFormatter(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
