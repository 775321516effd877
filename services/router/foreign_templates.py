"""Chat templates that requests bring along: anybody's code, rendered in a process that may be lost.

Jinja's sandbox keeps a template from reaching out, and not from looping for ever or multiplying a text until memory is
gone. So one child process renders them, one at a time, within a bound on processor time and on memory, and is replaced
when a template has cost it its life. It is started with the first such request.

Between the two: a line of JSON each way. {"source", "special_tokens", "arguments"} and {"text"} or {"error", "param"}.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE, Popen
from typing import Any

from services.router.errors import ApiError, invalid, overloaded
from shared.python_child import child_environment, python_command

MAX_TEMPLATE_CHARS = 64 * 1024
# Of the child, for one rendering. What the client waits for besides is the machine's business, within reason.
CPU_SECONDS = 2.0
_WALL_SECONDS = 60.0
_MEMORY_BYTES = 2 * 2**30
_MAX_LINE_BYTES = 16 * 2**20
_MAX_WAITING = 64


class ForeignTemplates:
    def __init__(self) -> None:
        # Its one thread alone talks to the process.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="templates")
        self._num_waiting = 0
        self._process: Popen[bytes] | None = None

    async def render(self, source: str, special_tokens: Mapping[str, str], arguments: Mapping[str, Any]) -> str:
        """`arguments`: of ChatTemplate.render. Raises ApiError: the template is too large, is no template, refuses the
        messages, or takes too long."""
        if len(source) > MAX_TEMPLATE_CHARS:
            message = f"Invalid 'chat_template': at most {MAX_TEMPLATE_CHARS} characters, but got {len(source)}."
            raise invalid(message, "chat_template", "string_above_max_length")
        if self._num_waiting >= _MAX_WAITING:
            raise overloaded("Too many requests with chat templates of their own are waiting.")
        task = {"source": source, "special_tokens": special_tokens, "arguments": arguments}
        self._num_waiting += 1
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._executor, self._ask, task)
        finally:
            self._num_waiting -= 1
        if "error" in answer:
            raise invalid(answer["error"], answer["param"])
        text: str = answer["text"]
        return text

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._process is not None:
            self._end(self._process)

    def _ask(self, task: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None:
            process = self._process = Popen(python_command(__name__), stdin=PIPE, stdout=PIPE, env=child_environment())
        assert process.stdin is not None
        assert process.stdout is not None
        alarm = threading.Timer(_WALL_SECONDS, process.kill)
        alarm.start()
        answer = b""
        try:
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline(_MAX_LINE_BYTES)
        except OSError:
            pass  # it is dead, as it is when it says nothing
        finally:
            alarm.cancel()
        if not answer.endswith(b"\n"):
            self._end(process)
            message = "Invalid 'chat_template': rendering it took too much time or memory."
            raise invalid(message, "chat_template", "invalid_value")
        parsed: dict[str, Any] = json.loads(answer)
        return parsed

    def _end(self, process: Popen[bytes]) -> None:
        self._process = None
        process.kill()
        # Leaving it waits for the process and closes its pipes.
        with contextlib.suppress(OSError), process:
            pass


def _render(task: Mapping[str, Any]) -> dict[str, Any]:
    from services.router.chat_template import UNPARSABLE, ChatTemplate

    try:
        text = ChatTemplate(task["source"], task["special_tokens"]).render(**task["arguments"])
    except ApiError as error:
        message = error.message.replace("The model's chat template", "The request's chat template")
        is_template_s = error.param == "messages" or error.code == UNPARSABLE
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
