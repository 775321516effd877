"""Limits the memory of answers of one message that clients do not read. grpc sends such an answer after its method has
returned, so no timer can end the call: it stays until the client reads the answer or leaves."""

from __future__ import annotations

from typing import Any

from services.router.errors import overloaded

# grpc passes on smaller answers without waiting for the client.
SMALL_BYTES = 65_536
# Total size of the larger answers that wait for their clients.
MAX_HELD_BYTES = 128 * 2**20
_RETRY_AFTER_SECONDS = 5.0


class UnreadAnswers:
    def __init__(self) -> None:
        self.num_bytes = 0

    def hold(self, num_bytes: int, context: Any) -> None:
        """Counts an answer until its call has ended. Raises ApiError if there are too many unread answers."""
        if num_bytes <= SMALL_BYTES:
            return
        if self.num_bytes + num_bytes > MAX_HELD_BYTES:
            raise overloaded("Too many clients have not read their answers.", _RETRY_AFTER_SECONDS)

        def release(_: Any) -> None:
            self.num_bytes -= num_bytes

        self.num_bytes += num_bytes
        context.add_done_callback(release)
