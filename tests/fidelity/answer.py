"""One HTTP answer as it came, and the JSON values in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    verb: str
    # Without a query.
    path: str
    status: int
    content_type: str
    body: bytes
    # False: the connection ended before the body did.
    is_whole: bool = True

    @property
    def media_type(self) -> str:
        return self.content_type.partition(";")[0].strip()

    @property
    def is_stream(self) -> bool:
        return self.media_type in ("text/event-stream", "application/x-ndjson")

    @property
    def json_values(self) -> list[bytes]:
        """The body, or the data of each event or line of a stream, without a closing [DONE]."""
        if self.media_type == "application/json":
            return [self.body] if self.is_whole else []
        if self.media_type == "application/x-ndjson":
            return [line for line in self._pieces(b"\n") if line]
        if self.media_type == "text/event-stream":
            events = [_data_of(event) for event in self._pieces(b"\n\n")]
            return [data for data in events if data not in (b"", b"[DONE]")]
        return []

    def _pieces(self, separator: bytes) -> list[bytes]:
        """What is after the last separator was cut off, or is nothing."""
        *pieces, rest = self.body.split(separator)
        assert not (rest and self.is_whole), f"a stream ends with {rest!r}"
        return pieces


def _data_of(event: bytes) -> bytes:
    lines = [line.removeprefix(b"data:").removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
