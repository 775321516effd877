"""Event loops in virtual time: one for each process of the simulated fleet, and one clock for all of them.

While anything is ready, the clock hardly moves. When nothing is ready, it jumps to the next timer. A process can be
paused and killed as the kernel does it: its loop stops between two callbacks, and no `finally` runs.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

# Each turn of a loop takes this long, because code that waits for the clock to move must not wait forever.
_TURN_S = 1e-6
# More turns of loops than this in one run are an endless loop.
_MAX_TURNS = 1_000_000


class Violation(AssertionError):  # noqa: N818 - the word that checkers use
    """The fleet broke a promise."""


class World:
    """The clock, the loops, and the timers of the network and the nemesis."""

    def __init__(self, seed: int) -> None:
        self.now = 1000.0
        self.seed = seed
        self.random = random.Random(seed)
        self.loops: list[PartLoop] = []
        # Errors that no code caught. Each is a bug.
        self.problems: list[str] = []
        self.trace: Callable[[str], None] | None = None
        self.num_callbacks = 0
        self.is_over = False
        self._busy: deque[PartLoop] = deque()
        self._num_timers = 0
        self._num_turns = 0
        self._timers: list[tuple[float, int, PartLoop | None, asyncio.TimerHandle | Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now - 1000:9.4f}  {text}")

    def new_loop(self, name: str) -> PartLoop:
        loop = PartLoop(self, name)  # type: ignore[abstract]
        self.loops.append(loop)
        return loop

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Calls back outside of any process."""
        self._num_timers += 1
        heapq.heappush(self._timers, (when, self._num_timers, None, callback))

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.call_at(self.now + seconds, callback)

    def add_timer(self, loop: PartLoop, timer: asyncio.TimerHandle) -> None:
        self._num_timers += 1
        heapq.heappush(self._timers, (timer.when(), self._num_timers, loop, timer))

    def is_ready(self, loop: PartLoop) -> None:
        self._busy.append(loop)

    def run(self, is_done: Callable[[], bool], until: float) -> bool:
        """Runs the fleet until `is_done` or the time `until`. Returns whether it was done."""
        while not is_done():
            self._run_ready()
            if not self._timers or self._timers[0][0] > until:
                self.now = max(self.now, until)
                return is_done()
            when, _, loop, timer = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            if loop is None:
                assert not isinstance(timer, asyncio.TimerHandle)
                timer()
            else:
                assert isinstance(timer, asyncio.TimerHandle)
                loop.timer_is_due(timer)
        return True

    def end(self) -> None:
        """Ends all processes, dead or alive, so that no coroutine stays suspended. Whatever they still do is void."""
        self.is_over = True
        for loop in self.loops:
            loop.end()
        while self._busy:
            self._busy.popleft().run_ready()

    def _run_ready(self) -> None:
        while self._busy:
            self.num_callbacks += self._busy.popleft().run_ready()
            self.now += _TURN_S
            self._num_turns += 1
            if self._num_turns > _MAX_TURNS:
                raise Violation("the processes are busy without end")


class PartLoop(asyncio.AbstractEventLoop):
    """The event loop of one process. Only what the services use of a loop is there."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self.is_dead = False
        self._is_paused = False
        self._ready: deque[asyncio.Handle] = deque()
        self._late: list[asyncio.TimerHandle] = []
        self._is_queued = False
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- The process ---------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        """Continues. What the network brought meanwhile and the timers that are late come in either order, as with
        gRPC, whose sockets have a thread of their own."""
        if not self._is_paused or self.is_dead:
            return
        self._is_paused = False
        late, self._late = self._late, []
        if self._world.random.random() < 0.5:
            self._ready.extend(late)
        else:
            self._ready.extendleft(reversed(late))
        self._queue()

    def kill(self) -> None:
        self.is_dead = True

    def end(self) -> None:
        """Cancels all tasks, and lets them run to their end."""
        self.is_dead = self._is_paused = False
        for task in list(self._tasks):
            task.cancel()
        self._queue()

    @property
    def is_up(self) -> bool:
        """Whether the process runs: it is neither paused nor dead."""
        return not self._is_paused and not self.is_dead

    @property
    def num_tasks(self) -> int:
        return len(self._tasks)

    def task_names(self) -> list[str]:
        return sorted(task.get_coro().__qualname__ for task in self._tasks)  # type: ignore[union-attr]

    def run_ready(self) -> int:
        """Runs the callbacks that are ready now. Returns their number."""
        self._is_queued = False
        if not self.is_up:
            return 0
        asyncio._set_running_loop(self)
        try:
            num_ready = len(self._ready)
            for _ in range(num_ready):
                if self.is_dead:  # by the callback before
                    break
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
        if self._ready:
            self._queue()
        return num_ready

    def timer_is_due(self, timer: asyncio.TimerHandle) -> None:
        if self.is_dead or timer.cancelled():
            return
        if self._is_paused:
            self._late.append(timer)
        else:
            self._ready.append(timer)
            self._queue()

    def _queue(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            self._world.is_ready(self)

    # -- asyncio's interface -------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._world.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._queue()
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._world.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.is_dead:
            self._world.add_timer(self, timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # a cancelled timer is skipped when it is due

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined] # a killed process ends with tasks pending
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead and not self._world.is_over:
            self._world.problems.append(f"{self.name}: {context.get('message')}: {context.get('exception')!r}")
