"""Claims the workers that discovery finds, and claims them again after a loss."""

from __future__ import annotations

import asyncio
import logging
import random

from services.scheduler.worker_groups.balance import Claimant
from services.scheduler.worker_groups.claim_turns import ClaimTurns
from services.scheduler.worker_groups.fleet import Fleet
from services.scheduler.worker_groups.worker_group import ServiceEnd, WorkerGroup
from services.scheduler.worker_groups.worker_link import (
    UnsuitableWorkerError,
    WorkerHeldError,
    WorkerLink,
    WorkerLostError,
)
from shared import clock
from shared.discovery import Parts, Source, follow
from shared.transport import Connect, GrpcChannel

logger = logging.getLogger(__name__)

CLAIM_TIMEOUT_S = 10.0
# Maximum number of workers that are tried at a time.
MAX_ATTEMPTS = 16
# Groups without worker and sequences are removed within this time.
_SWEEP_S = 1.0


class Claimer:
    """Keeps a group in the fleet for each worker that the source knows, and for each worker that is claimed. Discovery
    adds workers; only the end of a worker's stream removes one. So a worker that is missing from the source stays in
    use while it is claimed. When its stream has ended, its group is removed as soon as no sequence waits in it."""

    def __init__(
        self, fleet: Fleet, workers: Source, connect: Connect = GrpcChannel, jitter: random.Random | None = None
    ) -> None:
        """`workers`: discovers the workers. `jitter`: spreads the attempts of several schedulers."""
        self._fleet = fleet
        self._workers = workers
        self._connect = connect
        self._turns = ClaimTurns(jitter or random.Random())
        self._known: frozenset[str] = frozenset()
        self._groups: dict[str, WorkerGroup] = {}
        # The task of each group that tries to claim its worker, or serves it.
        self._tasks: dict[WorkerGroup, asyncio.Task[None]] = {}
        # Groups that try to claim their workers.
        self._attempts: set[WorkerGroup] = set()
        # Whether an attempt asks the worker's owner for the worker now.
        self._is_asking = False
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Runs until cancelled. Raises UnusableWorkerError if the scheduler's first worker cannot be used. Any other
        error is a bug, and ends all groups."""
        self._failure = asyncio.get_running_loop().create_future()
        following = asyncio.create_task(follow(self._workers, self._apply))
        trying = asyncio.create_task(self._try_in_turn())
        trying.add_done_callback(self._on_end)
        try:
            await self._failure
        finally:
            tasks = [following, trying, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _apply(self, parts: Parts) -> None:
        self._known = parts.addresses
        for address in parts.by_address:
            if address not in self._groups:
                self._groups[address] = self._fleet.add_group(address)
            if not self._turns.knows(address):
                self._turns.add(address, clock.now())
        for group in self._groups.values():
            if group.address not in self._known and not group.is_claimed:
                self._give_up(group)
        self._changed.set()

    def _give_up(self, group: WorkerGroup) -> None:
        """Tries the group's worker no more. `_sweep` removes the group when no sequence waits in it."""
        self._turns.remove(group.address)
        if (task := self._tasks.get(group)) is not None:
            task.cancel()

    def _sweep(self) -> None:
        """Removes the groups without worker and sequences whose worker is not known. Frees the KV block tables of
        groups whose workers other schedulers hold."""
        for group in list(self._groups.values()):
            if group.is_claimed or group.num_unfinished or group in self._tasks:
                continue
            if group.address not in self._known:
                del self._groups[group.address]
                self._fleet.remove_group(group)
                logger.info("forgot worker %s: discovery does not know it any more", group.address)
            elif self._turns.was_held_elsewhere(group.address):
                group.forget_worker()

    async def _try_in_turn(self) -> None:
        while True:
            self._changed.clear()
            self._sweep()
            seconds = _SWEEP_S
            while len(self._attempts) < MAX_ATTEMPTS and not self._fleet.is_draining:
                address = self._turns.next(clock.now())
                if address is None:
                    to_next = self._turns.seconds_to_next(clock.now())
                    seconds = _SWEEP_S if to_next is None else min(to_next, _SWEEP_S)
                    break
                self._start(self._groups[address])
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _start(self, group: WorkerGroup) -> None:
        self._attempts.add(group)
        task = self._tasks[group] = asyncio.create_task(self._try(group))

        def on_end(task: asyncio.Task[None]) -> None:
            if self._tasks.get(group) is task:
                del self._tasks[group]
                self._attempts.discard(group)
                if task.cancelled() and self._turns.knows(group.address) and not self._failure.done():
                    # Nothing here cancels the attempt for a worker that is still known. Without another turn, the
                    # worker would never be claimed again.
                    logger.error("the attempt to claim worker %s was cancelled; trying again", group.address)
                    self._turns.failed(group.address, clock.now())
            self._on_end(task)

        task.add_done_callback(on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _try(self, group: WorkerGroup) -> None:
        """Tries to claim a worker, and serves it until it is lost."""
        address = group.address
        claimant = self._claimant(address)
        self._is_asking |= claimant.asks_owner
        try:
            link = await WorkerLink.claim(address, claimant, CLAIM_TIMEOUT_S, self._connect)
        except WorkerHeldError as error:
            if error.boot_id is not None:
                group.settle(error.boot_id)
            if not self._turns.was_held_elsewhere(address):
                logger.info("%s", error)
            self._turns.held_elsewhere(address, clock.now(), was_asked=claimant.asks_owner)
            return
        except WorkerLostError as error:
            if self._turns.is_first_failure(address):
                level = logging.WARNING if isinstance(error, UnsuitableWorkerError) else logging.INFO
                logger.log(level, "waiting for worker %s: %s", address, error)
            self._turns.failed(address, clock.now())
            return
        finally:
            self._is_asking &= not claimant.asks_owner
            # If the address was forgotten and found again, another attempt has begun while this one ended.
            if self._tasks.get(group) is asyncio.current_task():
                self._attempts.discard(group)
            self._changed.set()
        self._turns.claimed(address)
        end = await group.serve(link)
        if address not in self._known:
            self._turns.remove(address)
        elif end is ServiceEnd.GIVEN_AWAY:
            self._turns.held_elsewhere(address, clock.now(), was_asked=True)
        elif end is ServiceEnd.UNSUITABLE:
            self._turns.failed(address, clock.now())
        else:
            self._turns.lost(address, clock.now(), has_worked=end is ServiceEnd.LOST_AT_WORK)

    def _claimant(self, address: str) -> Claimant:
        model, model_version = self._fleet.model.name_and_version
        return Claimant(
            self._fleet.scheduler_id,
            self._fleet.num_ready,
            # A worker that another scheduler held a moment ago answers soon. An address that cannot be reached would
            # keep the scheduler from asking elsewhere until the attempt times out.
            asks_owner=not self._is_asking and self._turns.was_held_elsewhere(address),
            model=model,
            model_version=model_version,
        )
