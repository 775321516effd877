from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.machine_limits import UnsupportedError, filled, no_more_memory, small_disk
from tests.fakes.waiting import HANG_S

# Waits for a line, and then takes more and more memory.
GREEDY = "input(); taken = []\nwhile True: taken.append(bytearray(1_000_000))"


def test_the_kernel_kills_a_process_that_takes_more_memory() -> None:
    process = subprocess.Popen([sys.executable, "-c", GREEDY], stdin=subprocess.PIPE)
    try:
        with no_more_memory(process.pid) as limit:
            pass
        assert not limit.has_killed
        with no_more_memory(process.pid) as limit:
            process.communicate(b"\n", timeout=HANG_S)
        assert process.returncode == -9
        assert limit.has_killed
    except UnsupportedError as error:
        pytest.skip(str(error))
    finally:
        process.kill()
        process.wait()


def test_a_small_disk_is_full_until_the_filler_is_gone(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with small_disk(directory) as is_mounted:
        if not is_mounted:
            pytest.skip("no file system can be mounted")
        with filled(directory), pytest.raises(OSError) as raised:  # noqa: PT011 - the number is checked below
            (directory / "file").write_bytes(bytes(8192))
        assert raised.value.errno == errno.ENOSPC
        (directory / "file").write_bytes(bytes(8192))
    assert list(directory.iterdir()) == []
