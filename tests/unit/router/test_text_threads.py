"""Long texts are worked on beside the event loop, and only so many wait."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from services.router.errors import ApiError, ErrorKind
from services.router.text.threads import TextThreads
from services.router.text.tokenizer import Tokenizer
from tests.fakes.waiting import HANG_S

MODEL = Path(__file__).parents[3] / "quire" / "models" / "quire-chat"


async def test_short_work_runs_at_once_and_long_work_beside() -> None:
    threads = TextThreads(1)
    try:
        here = threading.get_ident()
        assert await threads.run(10, threading.get_ident) == here
        assert await threads.run(1_000_000, threading.get_ident) != here
    finally:
        threads.close()


async def test_the_event_loop_goes_on_while_a_long_text_is_worked_on() -> None:
    threads = TextThreads(1)
    gate = threading.Event()
    try:
        long = asyncio.create_task(threads.run(1_000_000, lambda: gate.wait(HANG_S)))
        # Only this loop can open the gate that the work waits for.
        asyncio.get_running_loop().call_soon(gate.set)
        assert await long
    finally:
        gate.set()
        threads.close()


async def test_the_event_loop_turns_while_the_library_works_on_one_long_text() -> None:
    threads = TextThreads(1)
    tokenizer = Tokenizer((MODEL / "tokenizer.json").read_bytes(), b"{}", threads)
    try:
        # A call that kept the interpreter to itself would let the loop turn a few times before it and after, however
        # long the text.
        for num_words in (100_000, 200_000, 400_000, 800_000):
            text = "zzgarden " * num_words
            encoding = asyncio.create_task(tokenizer.encode([text]))
            turns_while_encoding = await _turns_until_done(encoding)
            decoding = asyncio.create_task(tokenizer.decode(await encoding))
            turns_while_decoding = await _turns_until_done(decoding)
            assert await decoding == [text]
            if min(turns_while_encoding, turns_while_decoding) > 20:
                break
        else:
            pytest.fail(f"the loop turned {turns_while_encoding} and {turns_while_decoding} times")
    finally:
        threads.close()


async def _turns_until_done(task: asyncio.Task[Any]) -> int:
    turns = 0
    while not task.done():
        await asyncio.sleep(0.001)
        turns += 1
    return turns


async def test_too_much_waiting_is_refused() -> None:
    threads = TextThreads(1)
    gate = threading.Event()
    try:
        waiting = [asyncio.create_task(threads.run(1_000_000, lambda: gate.wait(HANG_S))) for _ in range(256)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await threads.run(1_000_000, lambda: None)
        assert caught.value.kind is ErrorKind.OVERLOADED
        assert await threads.run(5, lambda: "short") == "short"
        gate.set()
        await asyncio.gather(*waiting)
    finally:
        gate.set()
        threads.close()


async def test_a_cancelled_caller_keeps_what_it_holds_until_its_work_has_ended() -> None:
    threads = TextThreads(2)
    begun, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        gate.wait(HANG_S)
        ended.set()
        raise ValueError("nobody asks for this")

    async def convert() -> None:
        async with threads.large_bodies.conversion:
            await threads.run_beside(work)

    try:
        first = asyncio.create_task(convert())
        await asyncio.to_thread(begun.wait, HANG_S)
        for _ in range(3):
            first.cancel()
            # Any number of turns will do that would let the caller go on.
            for _ in range(10):
                await asyncio.sleep(0)
        assert not first.done()
        assert threads.large_bodies.conversion.locked()
        assert threads.num_pending == 1
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert ended.is_set()
        assert not threads.large_bodies.conversion.locked()
        assert threads.num_pending == 0
    finally:
        gate.set()
        threads.close()


async def test_work_that_has_not_begun_never_does_when_its_caller_is_cancelled() -> None:
    threads = TextThreads(1)
    begun, gate = threading.Event(), threading.Event()
    done: list[str] = []

    def work() -> None:
        begun.set()
        gate.wait(HANG_S)

    try:
        first = asyncio.create_task(threads.run_beside(work))
        await asyncio.to_thread(begun.wait, HANG_S)
        second = asyncio.create_task(threads.run_beside(lambda: done.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert threads.num_pending == 1
        gate.set()
        await first
        await threads.run_beside(lambda: done.append("third"))
        assert done == ["third"]
    finally:
        gate.set()
        threads.close()


async def test_an_error_of_work_is_raised_and_freed_without_a_collection() -> None:
    class HeldError(Exception):
        pass

    def work() -> None:
        raise HeldError

    threads = TextThreads(1)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(HeldError):
            await threads.run_beside(work)
        # The thread drops what it worked on when it takes something else.
        await threads.run_beside(lambda: None)
        assert not [one for one in gc.get_objects() if isinstance(one, HeldError)]
    finally:
        gc.enable()
        threads.close()
