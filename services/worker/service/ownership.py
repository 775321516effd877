"""The lock of a worker: which scheduler owns it, and which one gets it next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.worker.v1 import worker_pb2
from shared.grpc_server import MAX_ID_CHARS
from shared.model_label import model_label

# Maximum seconds that a contender waits for the owner's answer. An owner that does not answer keeps the worker.
ANSWER_TIMEOUT_S = 2.0


class ClaimRefusedError(Exception):
    """Another scheduler owns the worker, or the worker is stopping. The message says which."""


def check_model(claim: worker_pb2.Claim, name: str, version: str) -> None:
    """Raises ClaimRefusedError if the claimant serves another model than the worker, or another version of it."""
    if claim.model and (claim.model, claim.model_version) != (name, version):
        asked = model_label(claim.model, claim.model_version)
        raise ClaimRefusedError(f"this worker serves {model_label(name, version)}, not {asked}")


class Ownership:
    """Lets one scheduler at a time own the worker. A claim can ask the owner to give the worker away; the worker then
    passes from the owner to this contender, and no third scheduler can claim it in between.
    """

    def __init__(self) -> None:
        self._owner: str | None = None
        # Sends a message to the owner. None if the owner does not understand Contender.
        self._tell: Callable[[worker_pb2.RunResponse], None] | None = None
        # Whether the owner's stream has ended, so that the worker is free once its steps have ended.
        self._is_leaving = False
        # The answer to the contender that waits: whether it gets the worker.
        self._answer: asyncio.Future[bool] | None = None
        self._contender = ""
        self._is_draining = False
        # Set while no scheduler owns the worker.
        self._free = asyncio.Event()
        self._free.set()

    @property
    def owner(self) -> str | None:
        return self._owner

    async def take(self, claim: worker_pb2.Claim) -> None:
        """Makes the claimant the owner. Raises ClaimRefusedError if another scheduler owns the worker and keeps it."""
        name = claim.scheduler_id[:MAX_ID_CHARS] or "a scheduler"
        if self._is_draining:
            raise ClaimRefusedError("the worker is shutting down")
        if self._owner is None:
            self._owner = name
            self._free.clear()
        elif not claim.asks_owner or self._tell is None or self._answer is not None:
            raise ClaimRefusedError(f"this worker is held by {self._owner}")
        else:
            contender = worker_pb2.Contender(scheduler_id=name, num_groups=claim.num_groups)
            self._tell(worker_pb2.RunResponse(contender=contender))
            await self._wait(name)

    def attach(self, tell: Callable[[worker_pb2.RunResponse], None]) -> None:
        """From now on, the owner is told of contenders. Call it once the owner's stream has begun."""
        self._tell = tell

    def keep(self) -> None:
        """The owner has answered that it keeps the worker."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(False)

    def leave(self) -> None:
        """The owner's stream has ended. Its steps can still run."""
        self._is_leaving = True
        self._tell = None

    def release(self) -> None:
        """The steps of the owner that left have ended: the contender that waits gets the worker, or else the next
        claimant."""
        self._owner, self._is_leaving = None, False
        self._free.set()
        if self._answer is not None and not self._answer.done():
            self._owner = self._contender
            self._free.clear()
            self._answer.set_result(True)

    async def drain(self) -> None:
        """Refuses all claims from now on, tells the owner, and waits until it has left. Returns at once if the owner
        does not understand Drain."""
        self._is_draining = True
        self.keep()
        if self._tell is not None:
            self._tell(worker_pb2.RunResponse(drain=worker_pb2.Drain()))
        if self._tell is not None or self._is_leaving:
            await self._free.wait()

    async def _wait(self, name: str) -> None:
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._contender = name
        try:
            await asyncio.wait({answer}, timeout=ANSWER_TIMEOUT_S)
            if self._is_leaving and not answer.done():
                await answer
        except asyncio.CancelledError:
            if answer.done() and answer.result():
                self.release()  # The contender has gone away with the worker in its hands.
            raise
        finally:
            if self._answer is answer:
                self._answer = None
        if not answer.done() or not answer.result():
            raise ClaimRefusedError(f"this worker is held by {self._owner}")
