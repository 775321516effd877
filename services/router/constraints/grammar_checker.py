"""Compiles and tries each new grammar before its request is accepted, in a child process with limits on time and
memory. Caches the results across requests."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import selectors
import signal
import subprocess
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from services.router.errors import ApiError, ErrorKind, invalid, overloaded
from services.router.grammar import Structure
from shared.grammar import MAX_GRAMMAR_BYTES, GrammarError, has_library
from shared.python_child import child_environment, python_command

# Maximum number of different grammars that wait for a check. A check takes about 10 ms, or 3 s if the grammar is
# hostile.
_MAX_PENDING = 1024
# Maximum time that a client waits for a check. After that, the router answers that it is overloaded, because the time
# went to the checks of other grammars.
_MAX_WAIT_SECONDS = 30.0
_MAX_CHECKED = 256
# Error code of a structure that cannot be used.
INVALID_STRUCTURE = "invalid_structure"
# Part of the error message if a check reached its time or memory limit. If tool_faults.py finds it in an error, no
# further structures are checked, because checks of similar structures would reach the limit, too.
TOO_MUCH = "too much time or memory"
# Maximum wall-clock time of one check. The checking process also limits its own CPU time, but that limit never ends a
# process that gets no CPU time.
_MAX_SECONDS_EACH = 30.0
# Number of checks after which a new process starts, because llguidance might keep memory of every check.
_MAX_CHECKS_OF_PROCESS = 1000

# With this variable, glibc gives no thread a memory pool of its own. Such a pool would take 64 MiB of the checking
# process's address space, which is limited.
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}
# Exit codes of a checking process that was ended from outside, for example by the kernel when memory is short. After
# such an exit, the check is repeated once, because the structure is probably not the cause. The process's own limits
# cause other exit codes.
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP)
# Exit codes of a checking process that got no more memory: in llguidance, and in Python.
_OUT_OF_MEMORY = (-signal.SIGABRT, 1)

_Result = str | GrammarError


@dataclass(slots=True)
class _Pending:
    """A check that has not ended, and the number of requests that wait for it."""

    check: Future[_Result]
    num_waiting: int = 0


class GrammarChecks:
    """Checks structures and caches the results, including errors, so that a structure is not checked again while its
    result is in the cache. All checks run one after another in a single process. A hostile client can therefore delay
    only structures that are not in the cache."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-checks")
        self._process = _CheckProcess()
        # Guards the fields below, which the event loop and the checking thread use.
        self._lock = threading.Lock()
        self._checked: OrderedDict[Structure, _Result] = OrderedDict()
        self._pending: dict[Structure, _Pending] = {}

    async def check(self, structure: Structure) -> str:
        """Returns the structure's grammar in llguidance's form. Raises ApiError that names the structure's field."""
        if not has_library():
            raise ApiError(
                ErrorKind.UNSUPPORTED, "Structured output needs llguidance, which is not installed.", structure.param
            )
        if len(structure.source) > MAX_GRAMMAR_BYTES:  # too large to cache
            result: _Result = GrammarError(
                f"it has {len(structure.source)} characters; at most {MAX_GRAMMAR_BYTES} are allowed"
            )
        else:
            result = await self._result(structure)
        if isinstance(result, GrammarError):
            what = structure.kind.value.replace("_", " ")
            message = f"Invalid '{structure.param}': this {what} cannot be used to structure an output: {result}."
            raise invalid(message, structure.param, INVALID_STRUCTURE)
        return result

    def close(self) -> None:
        """Ends the process. Pending checks fail."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._process.close()

    async def _result(self, structure: Structure) -> _Result:
        is_new = False
        with self._lock:
            result = self._checked.get(structure)
            if result is not None:
                self._checked.move_to_end(structure)
                return result
            pending = self._pending.get(structure)
            if pending is None:
                if len(self._pending) >= _MAX_PENDING:
                    raise overloaded("Too many grammars are waiting to be checked.")
                pending = self._pending[structure] = _Pending(self._thread.submit(self._process.check, structure))
                is_new = True
            pending.num_waiting += 1
        if is_new:
            pending.check.add_done_callback(functools.partial(self._keep, structure))
        try:
            async with asyncio.timeout(_MAX_WAIT_SECONDS):
                # The check is shielded from cancellation, because other requests can wait for the same check.
                return await asyncio.shield(asyncio.wrap_future(pending.check))
        except TimeoutError:  # raised by this timeout or by the check itself
            raise overloaded("This router is too busy to check a grammar.") from None
        finally:
            with self._lock:
                pending.num_waiting -= 1
                is_forgotten = not (pending.num_waiting or pending.check.running() or pending.check.done())
                if is_forgotten:
                    del self._pending[structure]  # a request that comes now starts another check
            if is_forgotten:
                pending.check.cancel()

    def _keep(self, structure: Structure, done: Future[_Result]) -> None:
        with self._lock:
            pending = self._pending.get(structure)
            if pending is not None and pending.check is done:
                del self._pending[structure]
            if done.cancelled() or done.exception() is not None:
                return
            self._checked[structure] = done.result()
            while len(self._checked) > _MAX_CHECKED:
                self._checked.popitem(last=False)


class _CheckProcess:
    """The child process that checks structures. A check starts the process if it is not running. Only one thread may
    use this object."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._num_checks = 0

    def check(self, structure: Structure) -> _Result:
        """Returns the structure's grammar, or the error of a structure that cannot be used. Raises TimeoutError if the
        process gets no CPU time."""
        if self._num_checks >= _MAX_CHECKS_OF_PROCESS:
            self.close()
        for _ in range(2):
            answer = self._ask({"kind": structure.kind.value, "source": structure.source})
            if answer:
                result = json.loads(answer)
                return GrammarError(result["error"]) if "error" in result else str(result["grammar"])
            is_first = self._num_checks == 1
            ended = self.close()
            # Memory that earlier checks left behind may be the cause. So try once more, in a new process.
            is_repeated = ended in _FROM_OUTSIDE or (ended in _OUT_OF_MEMORY and not is_first)
            if not is_repeated:
                break
        return GrammarError(f"it takes {TOO_MUCH} to compile")

    def close(self) -> int | None:
        """Ends the process and returns its exit code; None if there was no process."""
        if self._child is None:
            return None
        self._child.kill()  # no effect on a process that has exited
        self._child.communicate()
        ended, self._child, self._num_checks = self._child.returncode, None, 0
        return ended

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            python_command("services.router.grammar.check_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment() | _ENVIRONMENT,
        )

    def _ask(self, question: object) -> bytes:
        """Sends `question` as JSON and returns the line of the answer; empty if the process has died. Raises
        TimeoutError if there is no answer within _MAX_SECONDS_EACH."""
        child = self._child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        self._num_checks += 1
        try:
            child.stdin.write(json.dumps(question).encode() + b"\n")
            child.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(child.stdout, selectors.EVENT_READ)
                if not selector.select(_MAX_SECONDS_EACH):
                    raise TimeoutError
            line = child.stdout.readline()
        except BrokenPipeError:
            return b""
        except BaseException:
            self.close()  # otherwise the child's late answer would be read as the answer to the next question
            raise
        return line if line.endswith(b"\n") else b""


@functools.cache
def grammar_checks() -> GrammarChecks:
    """Returns the router's only GrammarChecks. Its process starts with the first structured request."""
    checks = GrammarChecks()
    atexit.register(checks.close)
    return checks
