"""The keeper: the process that runs the stack of a program that uses `LLM`. The program starts it with
`python -m quire.offline.keeper PARENT STATUS_FD` and writes the stack's options as a JSON object to its standard input.

The keeper is a separate process for three reasons. Parts are not forked from a program with threads and much memory.
Signals of the program's terminal do not reach the parts. No part survives the program, however it ends: the keeper ends
when its parent does, and the parts end with the keeper.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from quire.cli.serve import start_display
from quire.cli.stack import Stack, part_environment, part_specs, socket_address, stack_directory
from quire.cli.supervisor import StackError, Supervisor
from quire.offline.own_stack import router_stack
from shared.config import ConfigError
from shared.output import dropping
from shared.status import StatusReporter

_POLL_S = 0.2


def main(parent: int, status_fd: int) -> int:
    os.set_inheritable(status_fd, False)
    sys.stderr = dropping(sys.stderr)
    reporter = StatusReporter(status_fd)
    try:
        asyncio.run(_keep(router_stack(json.load(sys.stdin)), parent, reporter))
    except (ConfigError, StackError) as error:
        reporter.failed(str(error))
        return 1
    return 0


async def _keep(stack: Stack, parent: int, reporter: StatusReporter) -> None:
    """Runs the stack until a signal arrives or the parent process ends. Raises StackError if a part fails too often."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)

    async def watch() -> None:
        while os.getppid() == parent:  # noqa: ASYNC110 - a child gets no event for it
            await asyncio.sleep(_POLL_S)
        hurry.set()
        stop.set()

    with stack_directory() as directory, start_display(stack.part_names, verbose=False) as display:
        for note in stack.notes:
            display.note(note)

        async def on_ready() -> None:
            display.settle()
            reporter.ready(address=socket_address(directory, stack.names("router")[0]))

        async def works() -> str | None:
            return None  # No further check is needed: the router reports ready only when it can serve.

        watching = asyncio.create_task(watch())
        specs, environment = part_specs(stack, directory), part_environment(stack, directory)
        await Supervisor(specs, environment, display, works).run(stop, hurry, on_ready)
        watching.cancel()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
