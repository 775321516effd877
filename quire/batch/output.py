"""The output file of a batch. A run that is killed leaves whole lines and at most one truncated last line. The next run
removes the truncated line and continues the file."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from quire.batch.format import OutputLine, read_output_line
from quire.batch.lines import write_all

# No line of an output is this long. If a file has such a line, run-batch did not write the file.
MAX_OUTPUT_LINE_BYTES = 256 * 1024 * 1024
STANDARD_OUTPUT = "-"


class BatchError(Exception):
    """A batch that cannot be run. The message is shown to the user."""


class BatchOutput:
    """A batch's output. A file is locked against other run-batch processes, and a later run can continue it. Standard
    output and pipes are not locked and cannot be continued."""

    def __init__(self, path: str) -> None:
        """Opens the output and creates the file if it is missing. Raises BatchError."""
        self.name = "standard output" if path == STANDARD_OUTPUT else path
        try:
            # Use a duplicate of standard output's descriptor: __exit__ closes the duplicate and leaves standard output
            # open.
            self._fd = os.dup(1) if path == STANDARD_OUTPUT else os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise BatchError(f"{self.name} cannot be written: {error.strerror}") from error
        self._is_file = stat.S_ISREG(os.fstat(self._fd).st_mode) and path != STANDARD_OUTPUT
        if self._is_file:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._fd)
                raise BatchError(f"another run-batch is writing {self.name}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def is_same_file(self, fd: int) -> bool:
        return self._is_file and os.path.samestat(os.fstat(self._fd), os.fstat(fd))

    def kept(self) -> Iterator[tuple[str | None, bool]]:
        """Yields the custom id of each whole line in the file, and whether its request succeeded. At the end, removes a
        truncated last line and sets the position for new lines. Raises BatchError."""
        if not self._is_file:
            return
        end = 0
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            while data := file.readline(MAX_OUTPUT_LINE_BYTES):
                if not data.endswith(b"\n") and len(data) < MAX_OUTPUT_LINE_BYTES:
                    break
                try:
                    yield read_output_line(data)
                except ValueError as error:
                    raise BatchError(f"{self.name} cannot be continued: {error}") from None
                end += len(data)
        os.ftruncate(self._fd, end)
        os.lseek(self._fd, end, os.SEEK_SET)

    async def write(self, line: OutputLine) -> None:
        """Appends a line, in one write if the output is a file. Raises BatchError."""
        try:
            await write_all(self._fd, line.data, may_wait=not self._is_file)
        except OSError as error:
            raise BatchError(f"{self.name} cannot be written: {error.strerror}") from error

    def sync(self) -> None:
        """Waits until the file's data are on the disk."""
        if self._is_file:
            os.fsync(self._fd)
