"""`quire demo`: the real stack with the bundled model, from start to stop."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from quire.cli.demo import PROMPT
from tests.fakes.waiting import HANG_S
from tests.unit.cli.processes import with_environment


async def start_demo(directory: Path, *options: str, **variables: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quire.cli.main", "demo", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "DEMO_TEST": str(directory), "XDG_RUNTIME_DIR": str(directory), **variables},
    )


async def test_it_streams_an_answer_prints_the_figures_and_leaves_nothing(short_directory: Path) -> None:
    mark = f"DEMO_TEST={short_directory}"
    before = sum(os.times()[2:4])  # seconds that child processes computed
    process = await start_demo(short_directory)
    assert process.stdout is not None
    head = await asyncio.wait_for(process.stdout.readuntil(PROMPT.encode()), HANG_S)
    # The demo, Envoy, and the command of each of the four parts.
    assert len(with_environment(mark)) == 6
    tail, stderr = await asyncio.wait_for(process.communicate(), HANG_S)

    assert process.returncode == 0, stderr.decode()
    question, *answer, figures = (part.strip() for part in (head + tail).decode().strip().split("\n\n"))
    assert question == PROMPT
    assert len(" ".join(answer).split()) > 20
    assert re.fullmatch(r"\d+ tokens, first after \d+ ms, then [\d.]+ tokens/s", figures)
    assert with_environment(mark) == []
    assert os.listdir(short_directory) == []
    # The promise is twenty seconds from the command to the answer.
    print(f"the demo took {sum(os.times()[2:4]) - before:.1f} s of processor time; about seven on two free cores")


async def test_it_asks_with_the_key_that_the_environment_sets(short_directory: Path) -> None:
    process = await start_demo(short_directory, "--prompt", "What is Quire?", QUIRE_API_KEY="open-sesame")
    stdout, stderr = await asyncio.wait_for(process.communicate(), HANG_S)

    assert process.returncode == 0, stderr.decode()
    assert stdout.startswith(b"\nWhat is Quire?\n\n")
