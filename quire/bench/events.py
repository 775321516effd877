"""Server-sent events (WHATWG HTML, section 9.2) out of a body's bytes."""

from __future__ import annotations


class EventParser:
    """The data of each event, however the bytes are split. Lines end in LF or CRLF; comments and other fields are
    dropped, and so is an event that the stream's end cuts."""

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
