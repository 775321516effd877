"""A local stack that only this program uses. A separate process, the keeper (keeper.py), runs the stack."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any, TextIO

from quire.cli.stack import Stack
from quire.cli.stack_options import build_stack
from quire.cli.supervisor import StackError
from shared.python_child import child_environment, python_command
from shared.status import parse_status

# Time limits of `OwnStack.stop`. _STOP_TIMEOUT_S: time for the parts to stop in order. _HURRY_TIMEOUT_S: time after
# that for the keeper process to kill all parts.
_STOP_TIMEOUT_S = 60.0
_HURRY_TIMEOUT_S = 10.0


def router_stack(options: Mapping[str, Any]) -> Stack:
    """Builds the configuration of a stack without a gateway; the program calls the router directly. Raises
    ConfigError."""
    return build_stack(options, {}).with_gateway(None)


class OwnStack:
    """A stack that runs from the object's creation until `stop`. Only the process that created it may stop it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Starts the stack and waits until it can serve. `options`: options that build_stack has checked. Raises
        StackError if the stack does not start."""
        self._owner = os.getpid()
        self._reason: str | None = None
        reader, writer = os.pipe()
        self._statuses: TextIO = os.fdopen(reader)
        try:
            self._keeper = subprocess.Popen(
                python_command("quire.offline.keeper", str(self._owner), str(writer)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(writer,),
                start_new_session=True,
                env=child_environment(),
            )
        finally:
            os.close(writer)
        try:
            assert self._keeper.stdin is not None
            with contextlib.suppress(BrokenPipeError), self._keeper.stdin as standard_input:
                standard_input.write(json.dumps(dict(options)).encode())
            self.address = self._next_status()["address"]
        except BaseException:
            self.stop()
            raise

    @property
    def is_ours(self) -> bool:
        """False in a process that was forked from the stack's owner."""
        return os.getpid() == self._owner

    def failure(self) -> str | None:
        """Returns why the stack has ended; None while it runs."""
        if self._reason is None and self._keeper.poll() is not None:
            try:
                self._next_status()
            except StackError as error:
                self._reason = str(error)
        return self._reason

    def stop(self) -> None:
        """Stops the stack and waits until none of its processes is left."""
        self._reason = self._reason or "it was stopped"
        self._keeper.terminate()
        try:
            self._keeper.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._keeper.terminate()
            try:
                self._keeper.wait(_HURRY_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.wait()
        self._statuses.close()

    def _next_status(self) -> dict[str, str]:
        """Waits for the keeper's next status line and returns its `facts`. Raises StackError if the status is a failure
        or the keeper has ended."""
        line = self._statuses.readline()
        if not line:
            raise StackError(f"the process that runs the stack ended with status {self._keeper.wait()}")
        status = parse_status(line)
        if status.state == "failed":
            raise StackError(status.detail)
        return status.facts
