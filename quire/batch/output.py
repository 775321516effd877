"""The file of answers. It holds whole lines and at most one that was cut off, so a run that was killed can go on."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from quire.batch.format import OutputLine, read_output_line
from quire.batch.lines import write_all

# No answer is as long; what is so long is some other file.
MAX_OUTPUT_LINE_BYTES = 256 * 1024 * 1024
STANDARD_OUTPUT = "-"


class BatchError(Exception):
    """Why a batch cannot be run, in a sentence for the person who asked for it."""


class BatchOutput:
    """An output that this process alone writes to. Only a file can be gone on with; a pipe starts empty."""

    def __init__(self, path: str) -> None:
        """Makes the file where there is none. Raises BatchError."""
        self.name = "standard output" if path == STANDARD_OUTPUT else path
        try:
            # A duplicate, so that closing it leaves standard output to others.
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
        """Custom id, and whether the request succeeded, of each whole line that is there already. Consumed, it has
        dropped a last line that was cut off, and the output goes on after the others. Raises BatchError."""
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
                    raise BatchError(f"{self.name} is in the way: {error}") from None
                end += len(data)
        os.ftruncate(self._fd, end)
        os.lseek(self._fd, end, os.SEEK_SET)

    async def write(self, line: OutputLine) -> None:
        """In one piece where it is a file. Raises BatchError."""
        try:
            await write_all(self._fd, line.data, may_wait=not self._is_file)
        except OSError as error:
            raise BatchError(f"{self.name} cannot be written: {error.strerror}") from error

    def sync(self) -> None:
        """Returns once the device has it."""
        if self._is_file:
            os.fsync(self._fd)
