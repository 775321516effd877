"""The router's heap has one pool, and gives large blocks back. Each test has a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fakes.waiting import HANG_S

PROGRAM = """
import ctypes, re, sys, threading
from services.router.heap import settle_heap
from services.worker.heap import _mallinfo2

libc = ctypes.CDLL(None)
libc.fopen.restype, libc.fopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_char_p)
libc.malloc_info.argtypes, libc.fclose.argtypes = (ctypes.c_int, ctypes.c_void_p), (ctypes.c_void_p,)
if "settled" in sys.argv:
    settle_heap()
barrier = threading.Barrier(4)
threads = [threading.Thread(target=lambda: (bytes(10_000), barrier.wait())) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
file = libc.fopen(b"/dev/stdout", b"w")
libc.malloc_info(0, file)
libc.fclose(file)
bytes(20_000_000)
before = _mallinfo2()().hblkhd
block = bytes(2_000_000)
print("mapped" if _mallinfo2()().hblkhd - before >= 2_000_000 else "in a pool")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
@pytest.mark.parametrize(("argument", "has_one_pool", "place"), [("settled", True, "mapped"), ("", False, "in a pool")])
def test_threads_share_a_pool_and_large_blocks_are_mapped(argument: str, has_one_pool: bool, place: str) -> None:
    command = [sys.executable, "-c", PROGRAM, argument]
    text = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True).stdout
    assert (text.count("<heap nr") == 1, text.splitlines()[-1]) == (has_one_pool, place)
