"""Carries out the drawn faults, and records them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import draw
from tests.chaos.draw import Planned, Round, allowed
from tests.chaos.fleet import Fleet, Shape
from tests.chaos.history import Fault, Skipped
from tests.chaos.machine_limits import UnsupportedError, filled, no_more_memory
from tests.chaos.member import NO_WORKER, Member
from tests.fakes.tcp_proxy import Proxy

# Seconds by which bytes on a delayed link are late.
_DELAY_S = 0.1


@dataclass(frozen=True, slots=True)
class LastRelease:
    """Where the last release is installed: one for parts whose addresses are options, one for those that use Redis."""

    plain: Path
    knows_redis: Path

    def of(self, name: str, shape: Shape) -> Path:
        return self.knows_redis if shape.uses_redis(name) else self.plain


class Nemesis:
    """`record`: takes each fault when it is over. `show`: prints a line of progress. `last_release`: None: there is
    none, so nothing is upgraded from it."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Callable[[], float],
        record: Callable[[Fault | Skipped], None],
        show: Callable[[str], None],
        last_release: LastRelease | None = None,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._record = record
        self._show = show
        self._last_release = last_release
        self._under_way: dict[Planned, asyncio.Task[None]] = {}
        self._of_parts: dict[str, Callable[[Member, float], Awaitable[None]]] = {
            draw.KILL: self._kill, draw.STOP: self._stop, draw.TERMINATE: self._terminate,
            draw.MEMORY: self._limit_memory,
        }  # fmt: skip
        self._of_links: dict[str, Callable[[Proxy, float], Awaitable[None]]] = {
            draw.DOWN: self._down, draw.CUT: self._cut, draw.DELAY: self._delay, draw.STALL: self._stall,
        }  # fmt: skip

    async def carry_out(self, rounds: Iterable[Round], seconds: float | None) -> None:
        """Carries out one round after another. `seconds`: no further round begins after this time. Raises an
        ExceptionGroup with a TimeoutError if a part does not end, or does not come up again."""
        end = None if seconds is None else time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for one in rounds:
                await self._until_allowed(one)
                if end is not None and time.monotonic() > end:
                    return
                self._show(f"{self._clock():5.0f} s {'; '.join(map(str, one.faults))}")
                for fault in one.faults:
                    self._under_way[fault] = group.create_task(self._carry_out(fault))
                self._fleet.note_processes()
                await asyncio.sleep(one.rest_s)

    async def _until_allowed(self, one: Round) -> None:
        """Waits until the fleet can bear the round beside the faults that are not over yet."""
        while not allowed(self._fleet.shape, self._under_way, one.faults):
            await asyncio.wait(self._under_way.values(), return_when=asyncio.FIRST_COMPLETED)
            self._under_way = {fault: task for fault, task in self._under_way.items() if not task.done()}

    async def _carry_out(self, fault: Planned) -> None:
        await asyncio.sleep(fault.after_s)
        if fault.kind == draw.ROLL:
            for name in draw.parts_of(self._fleet.shape, fault.target):
                await self._recorded(fault.kind, name, self._terminate(self._fleet.members[name], 0.0))
        elif fault.kind == draw.UPGRADE:
            await self._upgrade(draw.parts_of(self._fleet.shape, fault.target))
        elif fault.kind == draw.KILL_ALL:
            names = draw.parts_of(self._fleet.shape, fault.target)
            members = [self._fleet.members[name] for name in names]
            kills = asyncio.gather(*(self._kill(member, fault.seconds) for member in members))
            await self._recorded(fault.kind, names, kills)
        elif fault.kind in draw.OF_REDIS:
            await self._recorded(fault.kind, fault.target, self._of_redis(fault.kind)(fault.seconds))
        elif fault.kind == draw.DISK:
            await self._recorded(fault.kind, fault.target, self._fill_disk(fault.seconds))
        elif fault.kind in self._of_parts:
            member = self._fleet.members[fault.target]
            await self._recorded(fault.kind, fault.target, self._of_parts[fault.kind](member, fault.seconds))
        else:
            proxy = self._fleet.links[fault.target]
            await self._recorded(fault.kind, fault.target, self._of_links[fault.kind](proxy, fault.seconds))

    def _of_redis(self, kind: str) -> Callable[[float], Awaitable[None]]:
        redis = self._fleet.redis
        assert redis is not None
        return {
            draw.REDIS_STOP: redis.pause_primary, draw.REDIS_KILL: redis.kill_primary, draw.REDIS_EMPTY: redis.empty,
            draw.REDIS_FAILOVER: redis.fail_over, draw.REDIS_GONE: redis.pause_all, draw.REDIS_DOWN: redis.cut_off,
            draw.REDIS_STALL: redis.stall, draw.SENTINEL_STOP: redis.pause_sentinel,
        }[kind]  # fmt: skip

    async def _upgrade(self, names: Sequence[str]) -> None:
        """Starts the parts again one after the other in the last release, and then one after the other in this one. A
        scheduler of the last release neither asks another one for a worker nor gives one away, so a scheduler can be
        without a worker until both run this release."""
        if self._last_release is None:
            self._record(Skipped(draw.UPGRADE, "the last release is not in the history of this source tree"))
            return
        members = [self._fleet.members[name] for name in names]
        for member in members:
            member.enough = NO_WORKER
        for is_last in (True, False):
            for member in members:
                tree = self._last_release.of(member.name, self._fleet.shape) if is_last else None
                self._fleet.use_release(member.name, tree)
                end = self._terminate(member, 0.0)
                await self._recorded(draw.UPGRADE, member.name, end, was_last_release=not is_last)
        for member in members:
            member.expect_more()
        await asyncio.gather(*(member.wait_up() for member in members))

    async def _recorded(
        self, kind: str, target: str | Sequence[str], fault: Awaitable[object], *, was_last_release: bool = False
    ) -> None:
        targets = (target,) if isinstance(target, str) else tuple(target)
        start = self._clock()
        try:
            await fault
        except UnsupportedError as error:
            self._record(Skipped(kind, str(error)))
            return
        self._record(Fault(kind, targets, round(start, 4), round(self._clock(), 4), was_last_release))

    async def _kill(self, member: Member, seconds: float) -> None:
        member.hold()
        member.kill()
        await self._started_again(member, seconds)

    async def _terminate(self, member: Member, seconds: float) -> None:
        member.hold()
        member.terminate()
        await self._started_again(member, seconds)

    async def _started_again(self, member: Member, seconds: float) -> None:
        try:
            await member.wait_exited()
            await asyncio.sleep(seconds)
        finally:
            member.release()
        await member.wait_up()

    async def _limit_memory(self, member: Member, seconds: float) -> None:
        """Lets a part take no more memory. If the kernel kills it, it is started again without the limit. Raises
        UnsupportedError if it does not."""
        if (pid := member.pid) is None:
            return
        member.hold()
        try:
            with no_more_memory(pid) as limit, contextlib.suppress(TimeoutError):
                await asyncio.wait_for(member.wait_exited(), seconds)
            if limit.has_killed:
                await member.wait_exited()
        finally:
            is_killed = member.pid != pid
            member.release()
        if not is_killed:
            raise UnsupportedError("the part did not ask for more memory in that time")
        await member.wait_up()

    async def _fill_disk(self, seconds: float) -> None:
        if not self._fleet.has_small_disk:
            raise UnsupportedError("no file system can be mounted")
        with filled(self._fleet.runtime):
            await asyncio.sleep(seconds)

    async def _stop(self, member: Member, seconds: float) -> None:
        member.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            member.resume()

    async def _down(self, proxy: Proxy, seconds: float) -> None:
        await proxy.down()
        try:
            await asyncio.sleep(seconds)
        finally:
            await proxy.up()

    async def _cut(self, proxy: Proxy, seconds: float) -> None:
        await proxy.cut()

    async def _delay(self, proxy: Proxy, seconds: float) -> None:
        proxy.delay_s = _DELAY_S
        try:
            await asyncio.sleep(seconds)
        finally:
            proxy.delay_s = 0.0

    async def _stall(self, proxy: Proxy, seconds: float) -> None:
        proxy.stall()
        try:
            await asyncio.sleep(seconds)
        finally:
            proxy.unstall()
