"""Renders chat templates that requests contain. Started as `python -m services.router.template.process`.

Reads one JSON object per line from standard input: {"source", "special_tokens", "content_form"} with either
{"arguments"} or {"probes": true}. Answers each object with one line: {"text", "content_form"} for arguments,
{"traits", "content_form"} for probes, {"error", "param"} if the template fails, or LOST or BUSY (foreign.py). Exits at
the end of its input.

The process forks for each object, and the forked process renders. If the forked process exceeds the limits, it ends,
and its parent answers LOST, or BUSY if the forked process got too little CPU time to reach its limit. The next fork can
render at once, because the parent has already loaded the libraries.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any

from services.router.errors import ApiError
from services.router.limits import check_text_size, num_bytes
from services.router.template.content import ContentForm
from services.router.template.foreign import BUSY, LOST
from shared.process_memory import address_space

# Limits for one rendering.
CPU_SECONDS = 2.0
WALL_SECONDS = 8.0
# Memory for one rendering, in addition to the memory that the process already has.
MEMORY_BYTES = 64 * 2**20


def render(task: Mapping[str, Any]) -> dict[str, Any]:
    """Renders the template of a task, or, if the task has `probes`, tests which features the template supports. Returns
    the answer."""
    from services.router.template.chat_template import UNPARSABLE, ChatTemplate

    known = task["content_form"]
    template = ChatTemplate(task["source"], task["special_tokens"], None if known is None else ContentForm[known])
    if "probes" in task:
        traits = dataclasses.asdict(template.traits)
        return {"traits": traits, "content_form": template.form_of_content.name}
    try:
        text = template.render(**task["arguments"])
    except ApiError as error:
        message = error.message.replace("The model's chat template", "The request's chat template")
        is_template_s = error.param == "messages" or error.code == UNPARSABLE
        return {"error": message, "param": "chat_template" if is_template_s else error.param}
    try:
        check_text_size(num_bytes(text), "messages")
    except ApiError as error:
        return {"error": error.message, "param": error.param}
    return {"text": text, "content_form": template.form_of_content.name}


def _render_in_limits(line: str) -> None:
    """Renders or probes the template of one task within the limits, and writes the answer. Runs in a forked process.
    `line`: the task as JSON."""
    memory = address_space() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    # The process has no handlers for the timers' signals, so a signal kills it at once, whatever it computes.
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    answer = json.dumps(render(json.loads(line))).encode() + b"\n"
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        output.write(answer)


def main() -> None:
    from services.router.template.chat_template import import_renderer

    import_renderer()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The router handles Ctrl-C; this process exits when its input closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin:
        fork = os.fork()
        if fork == 0:
            status = 1
            try:
                _render_in_limits(line)
                status = 0
            finally:
                os._exit(status)
        _, status, usage = os.wait4(fork, 0)
        if status != 0:
            # SIGALRM: the wall time is over. SIGKILL: another program ended it, or the kernel because memory is short.
            from_outside = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGKILL)
            is_busy = from_outside and usage.ru_utime + usage.ru_stime < CPU_SECONDS / 2
            sys.stdout.write(json.dumps(BUSY if is_busy else LOST) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
