"""Parses server-sent events (WHATWG HTML, section 9.2) from the bytes of a body."""

from __future__ import annotations


class EventParser:
    """Extracts the `data` field of each event. The body can be fed in pieces that are split anywhere. Lines end in LF
    or CRLF. Comments, fields other than `data` and an incomplete last event are dropped."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, body: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + body).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events
