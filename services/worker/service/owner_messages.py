"""The messages of a worker's owner, who must not be silent for too long."""

from __future__ import annotations

from quire.worker.v1 import worker_pb2
from shared import clock
from shared.patience import Patience
from shared.pulse import FACTOR, Pulse
from shared.transport import ServerStream

# An owner that sends neither a plan nor a heartbeat for this number of seconds, or for longer if its messages are far
# apart, counts as hung. Another scheduler can then claim the worker.
_LEAST_S = 2.0
# Seconds between the heartbeats of a scheduler whose claim does not say it.
_HEARTBEAT_S = 2.0

Stream = ServerStream[worker_pb2.RunRequest, worker_pb2.RunResponse]


class OwnerSilentError(Exception):
    """The owner sent nothing for too long. All plans received so far have run."""


class OwnerMessages:
    """`pulse`: the pauses of this owner and of those before it. `claim`: the owner's claim."""

    def __init__(self, stream: Stream, pulse: Pulse, claim: worker_pb2.Claim) -> None:
        self._stream = stream
        self._pulse = pulse
        heartbeat_s = claim.heartbeat_s if claim.HasField("heartbeat_s") else _HEARTBEAT_S
        self._least_s = max(_LEAST_S, FACTOR * heartbeat_s)

    async def next(self) -> worker_pb2.RunRequest | None:
        """Returns the next message; None at the stream's end. Raises OwnerSilentError if none comes in time."""
        limit, since = self._pulse.limit_s(self._least_s), clock.now()
        try:
            async with Patience(limit):
                message = await self._stream.read()
        except TimeoutError:
            self._pulse.gave_up()
            raise OwnerSilentError(f"neither a plan nor a heartbeat came for {limit:.1f} s") from None
        self._pulse.heard(clock.now() - since)
        return message
