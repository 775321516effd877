"""Chat templates that requests bring along: anybody's code, rendered in a process that may be lost.

Jinja's sandbox keeps a template from reaching out, and not from looping for ever or multiplying a text until memory is
gone. So one child process renders them, one at a time, within a bound on processor time and on memory, and is replaced
when a template has cost it its life. It is started with the first such request.

Between the two: a line of JSON each way. {"source", "special_tokens", "arguments"} and {"text"} or {"error", "param"}.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from typing import Any

from services.router.errors import ApiError, invalid, overloaded

MAX_TEMPLATE_CHARS = 64 * 1024
# Of the child, for one rendering. What the client waits for besides is the machine's business, within reason.
CPU_SECONDS = 2.0
_WALL_SECONDS = 60.0
_MEMORY_BYTES = 2 * 2**30
_MAX_LINE_BYTES = 16 * 2**20
_MAX_WAITING = 64


class ForeignTemplates:
    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._num_waiting = 0
        self._process: Process | None = None

    async def render(self, source: str, special_tokens: Mapping[str, str], arguments: Mapping[str, Any]) -> str:
        """`arguments`: of ChatTemplate.render. Raises ApiError: the template is too large, is no template, refuses the
        messages, or takes too long."""
        if len(source) > MAX_TEMPLATE_CHARS:
            message = f"Invalid 'chat_template': at most {MAX_TEMPLATE_CHARS} characters, but got {len(source)}."
            raise invalid(message, "chat_template", "string_above_max_length")
        if self._num_waiting >= _MAX_WAITING:
            raise overloaded("Too many requests with chat templates of their own are waiting.")
        line = json.dumps({"source": source, "special_tokens": special_tokens, "arguments": arguments}) + "\n"
        self._num_waiting += 1
        try:
            async with self._lock:
                answer = await self._ask(line.encode())
        finally:
            self._num_waiting -= 1
        if "error" in answer:
            raise invalid(answer["error"], answer["param"])
        text: str = answer["text"]
        return text

    def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        self._process = None

    async def _ask(self, line: bytes) -> dict[str, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, stdin=PIPE, stdout=PIPE, limit=_MAX_LINE_BYTES
            )
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        try:
            async with asyncio.timeout(_WALL_SECONDS):
                process.stdin.write(line)
                await process.stdin.drain()
                answer = await process.stdout.readline()
        except (TimeoutError, ValueError, ConnectionError):
            pass  # too slow, too much, or dead: all the same to the client
        finally:
            # Also where the client left in the middle: the next one's answer must not be this one's.
            if not answer.endswith(b"\n"):
                self._process = None
                if process.returncode is None:
                    process.kill()
        if not answer.endswith(b"\n"):
            message = "Invalid 'chat_template': rendering it took too much time or memory."
            raise invalid(message, "chat_template", "invalid_value")
        parsed: dict[str, Any] = json.loads(answer)
        return parsed


def _render(task: Mapping[str, Any]) -> dict[str, Any]:
    from services.router.chat_template import ChatTemplate

    try:
        text = ChatTemplate(task["source"], task["special_tokens"]).render(**task["arguments"])
    except ApiError as error:
        message = error.message.replace("The model's chat template", "The request's chat template")
        is_template_s = error.param == "messages"
        return {"error": message, "param": "chat_template" if is_template_s else error.param}
    return {"text": text}


def main() -> None:
    """The child: renders what stdin says until it ends."""
    from services.router.chat_template import import_renderer

    import_renderer()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Ctrl-C is the router's to answer; this process ends with its pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # No handler: it ends the process, in the middle of whatever it computes.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        answer = json.dumps(_render(json.loads(line)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
