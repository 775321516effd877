"""Work on the background loop, for callers of every kind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from quire.offline.background import BackgroundLoop
from tests.fakes.waiting import HANG_S


async def thread_name() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def failing() -> None:
    raise LookupError("as it was raised")


def waits_for_a_result(thread: int) -> bool:
    frame: FrameType | None = sys._current_frames()[thread]
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[:2] == ["wait", "result"]


async def test_a_caller_with_a_loop_and_several_threads_share_one() -> None:
    background = BackgroundLoop()
    with ThreadPoolExecutor(4) as threads:
        names = {background.run(thread_name()), *threads.map(lambda _: background.run(thread_name()), range(20))}

    assert names == {"quire-llm"}
    assert [thread.name for thread in threading.enumerate()].count("quire-llm") >= 1
    with pytest.raises(LookupError, match="as it was raised"):
        background.run(failing())


def test_an_interrupt_ends_the_work() -> None:
    # A shell without job control has what it runs in the background ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    is_cancelled = threading.Event()
    caller = threading.get_ident()

    async def work() -> None:
        while not waits_for_a_result(caller):  # noqa: ASYNC110 - no thread tells when it waits
            await asyncio.sleep(0)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    try:
        with pytest.raises(KeyboardInterrupt):
            BackgroundLoop().run(work())
    finally:
        signal.signal(signal.SIGINT, before)
    assert is_cancelled.wait(HANG_S)


def test_a_forked_process_has_a_loop_of_its_own() -> None:
    background = BackgroundLoop()
    background.run(thread_name())
    pid = os.fork()
    if pid == 0:
        os._exit(background.run(thread_name()) != "quire-llm")
    assert os.waitpid(pid, 0) == (pid, 0)
