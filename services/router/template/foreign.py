"""Renders chat templates that requests contain. Such a template is untrusted code, so a child process renders it.

Jinja's sandbox keeps a template from outside access, but not from endless loops or from filling the memory. So each
rendering has limits on CPU time, wall time and memory. A few child processes (process.py) do the rendering. A child
starts when a request needs one and all running children are busy. A request waits a limited time for a child.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import LifoQueue
from subprocess import PIPE, Popen
from typing import Any

from services.router.errors import ApiError, invalid, overloaded
from services.router.template.probe import TemplateTraits
from shared.python_child import child_environment, python_command

MAX_TEMPLATE_CHARS = 64 * 1024
NUM_PROCESSES = 2
# Maximum time that one request spends on its template, including the wait for a child.
MAX_SECONDS = 30.0
MAX_WAITING = 64
# Number of templates whose probe results are cached, so that a conversation's next turn need not probe again.
_MAX_KNOWN = 256
_RETRY_AFTER_SECONDS = 5.0
_MAX_LINE_BYTES = 16 * 2**20
# A child is killed if it sends no answer within this time. A child normally ends a rendering itself; this limit is for
# a child that gets no CPU time.
_MAX_SECONDS_WITHOUT_ANSWER = 30.0

# A child's answers if a rendering exceeded the child's limits, and if it got too little CPU time to reach them.
LOST = {"lost": True}
BUSY = {"busy": True}


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a template. A rendering finds out `content_form`; a probe finds out `content_form` and
    `traits`."""

    # Name of a member of ContentForm.
    content_form: str | None = None
    traits: TemplateTraits | None = None


class ForeignTemplates:
    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="templates")
        # Renderings that are queued or running.
        self._open: set[Future[dict[str, Any]]] = set()
        # Cache by the template's digest, in order of last use; the most recent is last.
        self._known: dict[bytes, _Known] = {}
        self._all = [_Child() for _ in range(NUM_PROCESSES)]
        # Last in, first out: the most recently used child is reused first, so that no more children start than are
        # needed.
        self._idle: LifoQueue[_Child] = LifoQueue()
        for child in self._all:
            self._idle.put(child)

    @staticmethod
    def deadline() -> float:
        """Returns the deadline of a request that begins now, as time.monotonic() seconds."""
        return time.monotonic() + MAX_SECONDS

    async def render(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        arguments: Mapping[str, Any],
        deadline: float | None = None,
    ) -> str:
        """Returns the prompt. `arguments`: the arguments of ChatTemplate.render. `deadline`: time.monotonic() seconds;
        None: MAX_SECONDS from now. Raises ApiError if the template cannot be parsed, refuses the messages or takes too
        long, or if too many templates wait."""
        key = _key(source, special_tokens)
        known = self._known.get(key) or _Known()
        task = {"content_form": known.content_form, "arguments": arguments}
        answer = await self._answer(source, special_tokens, task, deadline)
        # If another request has probed the traits in the meantime, keep them.
        traits = (self._known.get(key) or known).traits
        self._remember(key, _Known(answer["content_form"], traits))
        text: str = answer["text"]
        return text

    async def traits(
        self, source: str, special_tokens: Mapping[str, str], deadline: float | None = None
    ) -> TemplateTraits:
        """Tells which parts of a request the template writes to the prompt. Raises ApiError as `render` does."""
        key = _key(source, special_tokens)
        known = self._known.get(key) or _Known()
        traits = known.traits
        if traits is None:
            task = {"content_form": known.content_form, "probes": True}
            answer = await self._answer(source, special_tokens, task, deadline)
            traits = TemplateTraits(**answer["traits"])
            known = _Known(answer["content_form"], traits)
        self._remember(key, known)
        return traits

    def _remember(self, key: bytes, known: _Known) -> None:
        self._known.pop(key, None)
        self._known[key] = known
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]

    async def _answer(
        self, source: str, special_tokens: Mapping[str, str], what: Mapping[str, Any], deadline: float | None
    ) -> dict[str, Any]:
        if len(self._open) >= MAX_WAITING:
            raise overloaded("Too many requests with their own chat template are waiting.", _RETRY_AFTER_SECONDS)
        left = MAX_SECONDS if deadline is None else deadline - time.monotonic()
        task = {"source": source, "special_tokens": special_tokens, **what}
        rendering = self._executor.submit(self._ask, task)
        self._open.add(rendering)
        # A rendering that has begun continues even if its request is cancelled. Until it ends, it counts towards
        # MAX_WAITING.
        rendering.add_done_callback(self._open.discard)
        try:
            async with asyncio.timeout(left):
                # The timeout cancels a rendering that has not begun.
                answer = await asyncio.wrap_future(rendering)
        except TimeoutError:
            raise _too_busy() from None
        if "error" in answer:
            raise invalid(answer["error"], answer["param"])
        return answer

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        for child in self._all:
            child.close()

    def _ask(self, task: Mapping[str, Any]) -> dict[str, Any]:
        # There are as many children as threads, so at least one child is idle.
        child = self._idle.get_nowait()
        try:
            return child.ask(task)
        finally:
            self._idle.put(child)


def _key(source: str, special_tokens: Mapping[str, str]) -> bytes:
    return hashlib.sha256(json.dumps([source, dict(special_tokens)]).encode()).digest()


def check_size(source: str) -> None:
    """Raises ApiError if a request's template is too large."""
    if len(source) > MAX_TEMPLATE_CHARS:
        message = f"Invalid 'chat_template': at most {MAX_TEMPLATE_CHARS} characters, but got {len(source)}."
        raise invalid(message, "chat_template", "string_above_max_length")


class _Child:
    """A child process that one thread at a time uses. A task starts the process if it is not running: at first, and
    after the process was killed."""

    def __init__(self) -> None:
        self._process: Popen[bytes] | None = None

    def ask(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a task and returns the answer. Raises ApiError if the rendering exceeded its limits, or if the child
        got too little CPU time."""
        process = self._process
        if process is None:
            command = python_command("services.router.template.process")
            # Rendering uses one thread, and libraries load faster without thread pools.
            environment = child_environment() | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            process = self._process = Popen(command, stdin=PIPE, stdout=PIPE, env=environment)
        assert process.stdin is not None
        assert process.stdout is not None
        alarm = threading.Timer(_MAX_SECONDS_WITHOUT_ANSWER, process.kill)
        alarm.start()
        answer = b""
        try:
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline(_MAX_LINE_BYTES)
        except OSError:
            pass  # the child is dead; `answer` is still empty, so the check below raises the error
        finally:
            alarm.cancel()
        if not answer.endswith(b"\n"):
            self.close()
            raise _too_much() if len(answer) >= _MAX_LINE_BYTES else _too_busy()
        parsed: dict[str, Any] = json.loads(answer)
        if parsed == LOST:
            raise _too_much()
        if parsed == BUSY:
            raise _too_busy()
        return parsed

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        # The context manager closes the pipes and waits for the process.
        with contextlib.suppress(OSError), process:
            pass


def _too_busy() -> ApiError:
    return overloaded("This router is too busy to render a request's own chat template.", _RETRY_AFTER_SECONDS)


def _too_much() -> ApiError:
    message = "Invalid 'chat_template': rendering it took too much time or memory."
    return invalid(message, "chat_template", "invalid_value")
