"""The worker as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from shared.status import Status, parse_status

PROGRAM = "import sys; from services.worker.main import main; sys.exit(main(sys.argv[1:]))"
OPTIONS = ("--num-gpu-blocks-override", "24", "--max-num-seqs", "4", "--num-threads", "1")


@contextmanager
def worker(*arguments: str, prelude: str = "") -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO]]:
    """The process, and what it reports. `prelude` is Python that it runs first."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", prelude + PROGRAM, *arguments, "--status-fd", str(write)],
        pass_fds=[write],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    with open(read, "rb") as reports:
        try:
            yield process, reports
        finally:
            process.kill()
            process.communicate()


def statuses(reports: BinaryIO) -> list[Status]:
    """Up to the last word on the start."""
    found = []
    for line in reports:
        found.append(parse_status(line))
        if found[-1].state != "starting":
            break
    return found
