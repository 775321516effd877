"""`quire demo`: the real stack with the bundled model, from start to stop."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from tests.unit.cli.processes import is_running


def with_environment(entry: str) -> list[int]:
    """Running processes that inherited an environment variable."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # Gone meanwhile.
    return [pid for pid in found if is_running(pid)]


async def test_it_streams_an_answer_prints_the_figures_and_leaves_nothing(short_directory: Path) -> None:
    mark = f"DEMO_TEST={short_directory}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quire.cli.main", "demo", "--prompt", "What is Quire?"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "DEMO_TEST": str(short_directory), "XDG_RUNTIME_DIR": str(short_directory)},
    )
    assert process.stdout is not None
    head = await asyncio.wait_for(process.stdout.readuntil(b"?"), 100)
    # The demo, Envoy, and the command of each of the four parts.
    assert len(with_environment(mark)) == 6
    tail, stderr = await asyncio.wait_for(process.communicate(), 100)

    assert process.returncode == 0, stderr.decode()
    question, answer, figures = (part.strip() for part in (head + tail).decode().strip().split("\n\n"))
    assert question == "What is Quire?"
    assert len(answer.split()) > 3
    assert re.fullmatch(r"\d+ tokens, first after \d+ ms, then [\d.]+ tokens/s", figures)
    assert with_environment(mark) == []
    assert os.listdir(short_directory) == []
