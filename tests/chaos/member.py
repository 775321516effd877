"""One part of the fleet as a process: started, watched, and started again when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from benchmarks.abuse.memory import tree
from quire.cli.part import Part, PartSpec
from shared.status import Status
from tests.fakes.waiting import HANG_S

Kind = Literal["gateway", "router", "scheduler", "worker"]
# What a scheduler without a worker reports.
NO_WORKER = "waiting for a worker"
# Seconds until a part that ended by itself is started again, as `quire serve` and containers do.
_RESTART_S = 0.5


class Member:
    """A part that is kept running. `ended`: called with its name at each exit of its process, how it ended, and whether
    that was meant. `enough`: detail of a status that counts as ready; it can change later."""

    def __init__(
        self,
        kind: Kind,
        spec: PartSpec,
        environment: Mapping[str, str],
        log: Path,
        ended: Callable[[str, str, bool], None],
        enough: str | None = None,
    ) -> None:
        self.kind = kind
        self.spec = spec
        # Set while the part serves, according to what it reported.
        self.is_up = asyncio.Event()
        # Whether the next exit is the nemesis's doing.
        self._is_meant = False
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._environment = environment
        self._log = log
        self._ended = ended
        self.enough = enough
        self._status = Status("starting")
        self._part: Part | None = None
        self._exited = asyncio.Event()
        self._exited.set()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pid(self) -> int | None:
        """Returns the id of the running process, None between an exit and the next start."""
        return self._part.pid if self._part is not None and self._part.running else None

    @property
    def is_kept(self) -> bool:
        """Whether the part is in the fleet: after `start`, until `stop`."""
        return self._keeping is not None

    def start(self) -> None:
        self._may_run.set()
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self, *, kills: bool = False) -> None:
        """Takes the part out of the fleet: with SIGTERM, and with SIGKILL when it has not ended in time. `kills`: with
        SIGKILL at once."""
        keeping, self._keeping = self._keeping, None
        self.hold()
        self.resume()
        if kills:
            self.kill()
            await self.wait_exited()
        elif self._part is not None and self._part.running:
            await self._part.stop()
            await self.wait_exited()
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    # -- What the nemesis does. Until `release`, the part stays down once its process has ended.

    def hold(self) -> None:
        self._is_meant = True
        self._may_run.clear()

    def release(self) -> None:
        if self.pid is not None:  # It has not ended, so a later exit is its own.
            self._is_meant = False
        self._may_run.set()

    def kill(self) -> None:
        """Sends SIGKILL to the part's own process, as the kernel does when memory runs out."""
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGKILL)

    def terminate(self) -> None:
        if self._part is not None:
            self._part.terminate()

    def pause(self) -> None:
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    async def wait_exited(self) -> None:
        """Waits until the process has ended. Raises TimeoutError after HANG_S."""
        async with asyncio.timeout(HANG_S):
            await self._exited.wait()

    async def wait_up(self) -> None:
        """Waits until the part serves. Raises TimeoutError after HANG_S."""
        try:
            async with asyncio.timeout(HANG_S):
                await self.is_up.wait()
        except TimeoutError as error:
            raise TimeoutError(f"{self.name} did not come up") from error

    def expect_more(self) -> None:
        """From now on, the part is up only once it is ready."""
        self.enough = None
        if not self._serves(self._status):
            self.is_up.clear()

    def _serves(self, status: Status) -> bool:
        return status.state == "ready" or (self.enough is not None and status.detail == self.enough)

    def _signal_all(self, number: signal.Signals) -> None:
        """Signals the part's process and its descendants, Envoy included."""
        for pid in tree(self.pid) if self.pid is not None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def _keep(self) -> None:
        while True:
            await self._may_run.wait()
            self._is_meant = False
            self._part = await Part.start(self.spec, self._environment, self)
            self._exited.clear()
            how = await self._part.ended()
            self.is_up.clear()
            self._ended(self.name, how, self._is_meant)
            self._exited.set()
            if self._may_run.is_set():
                await asyncio.sleep(_RESTART_S)

    # -- What the part reports (PartObserver)

    def on_status(self, name: str, status: Status) -> None:
        self._status = status
        if self._serves(status):
            self.is_up.set()

    def on_line(self, name: str, line: str) -> None:
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
