"""Grammars are tried before a request is taken: beside the event loop, in a process with limits, once for all requests
that bring the same one.
"""

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

from services.router.errors import ApiError, ErrorKind, invalid, overloaded
from services.router.grammar import Structure
from shared.grammar import MAX_GRAMMAR_BYTES, GrammarError, has_library
from shared.python_child import child_environment, python_command

# Different ones; each takes some 10 ms, and a hostile one 3 s.
_MAX_PENDING = 1024
# Then others' are what takes the time, and it is told that there are too many.
_MAX_WAIT_SECONDS = 30.0
_MAX_CHECKED = 256
# The code of the error.
INVALID_STRUCTURE = "invalid_structure"
# In the message of a check that came to the end of its time or memory: another like it would do so, too.
TOO_MUCH = "too much time or memory"
# The process has its own limit of computing time; this is for one that does not get to compute.
_MAX_SECONDS_EACH = 30.0
# After so many a fresh process takes over, whatever the library has kept of them.
_MAX_CHECKS_OF_PROCESS = 1000

# What ends the process by these says nothing of the structure, the first time: its own limits end it otherwise.
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP)

_Result = str | GrammarError


class GrammarChecks:
    """Results are kept, refusals too, so that what is sent again and again is tried once. One process: a hostile client
    holds up other new structures, and nothing else."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-checks")
        self._process = _CheckProcess()
        # Both of the event loop's thread and that of the checks.
        self._lock = threading.Lock()
        self._checked: OrderedDict[Structure, _Result] = OrderedDict()
        self._pending: dict[Structure, Future[_Result]] = {}

    async def check(self, structure: Structure) -> str:
        """Its grammar in the library's form. Raises ApiError, naming the structure's field."""
        if not has_library():
            raise ApiError(
                ErrorKind.UNSUPPORTED, "This router lacks llguidance, which structures need.", structure.param
            )
        if len(structure.source) > MAX_GRAMMAR_BYTES:  # nor is it kept
            result: _Result = GrammarError(
                f"it has {len(structure.source)} characters; {MAX_GRAMMAR_BYTES} are allowed"
            )
        else:
            result = await self._result(structure)
        if isinstance(result, GrammarError):
            what = structure.kind.value.replace("_", " ")
            message = f"Invalid '{structure.param}': this {what} cannot be used to structure an output: {result}."
            raise invalid(message, structure.param, INVALID_STRUCTURE)
        return result

    def close(self) -> None:
        """Ends the process; what waits is answered by an error."""
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
                pending = self._pending[structure] = self._thread.submit(self._process.check, structure)
                is_new = True
        if is_new:
            pending.add_done_callback(functools.partial(self._keep, structure))
        try:
            async with asyncio.timeout(_MAX_WAIT_SECONDS):
                # Others may be waiting for the same one.
                return await asyncio.shield(asyncio.wrap_future(pending))
        except TimeoutError:  # of this wait, or of the check
            raise overloaded("This router is too busy to check a grammar.") from None

    def _keep(self, structure: Structure, done: Future[_Result]) -> None:
        with self._lock:
            self._pending.pop(structure, None)
            if done.cancelled() or done.exception() is not None:
                return
            self._checked[structure] = done.result()
            while len(self._checked) > _MAX_CHECKED:
                self._checked.popitem(last=False)


class _CheckProcess:
    """Started with the first check and after each that it did not survive. For one thread."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._num_checks = 0

    def check(self, structure: Structure) -> _Result:
        """Raises TimeoutError where the process does not get to compute."""
        if self._num_checks >= _MAX_CHECKS_OF_PROCESS:
            self.close()
        for _ in range(2):
            answer = self._ask({"kind": structure.kind.value, "source": structure.source})
            if answer:
                result = json.loads(answer)
                return GrammarError(result["error"]) if "error" in result else str(result["grammar"])
            if self.close() not in _FROM_OUTSIDE:
                break
        return GrammarError(f"it takes {TOO_MUCH} to compile")

    def close(self) -> int | None:
        """Returns how the process has ended, if there was one."""
        if self._child is None:
            return None
        self._child.kill()  # nothing to one that has ended
        self._child.communicate()
        ended, self._child, self._num_checks = self._child.returncode, None, 0
        return ended

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            python_command("services.router.grammar.check_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
        )

    def _ask(self, question: object) -> bytes:
        """The answer's line; empty where the process has died. Raises TimeoutError."""
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
            self.close()  # its answer would be taken for the next one's
            raise
        return line if line.endswith(b"\n") else b""


@functools.cache
def grammar_checks() -> GrammarChecks:
    """This process's one; its own process starts with the first structured request."""
    checks = GrammarChecks()
    atexit.register(checks.close)
    return checks
