"""Reading ahead: within its budget, in the announced order, and right in any other."""

from __future__ import annotations

import threading
import time

import pytest

from services.worker.weights.read_ahead import ReadAhead
from tests.fakes.waiting import wait_until

SIZES = {f"item {index}": 10 for index in range(8)}


class Disk:
    def __init__(self) -> None:
        self.begun: list[str] = []
        self.threads: set[int] = set()
        self._lock = threading.Lock()

    def read(self, name: str) -> str:
        with self._lock:
            self.begun.append(name)
            self.threads.add(threading.get_ident())
        return f"content of {name}"

    def wait_for(self, count: int) -> list[str]:
        """What was begun, once it is `count` items and no more have come for a while."""
        wait_until(lambda: len(self.begun) >= count)
        # Were more read than the budget holds, they would come about now. A slow machine can only hide that.
        time.sleep(0.02)
        return self.begun


@pytest.mark.parametrize(("budget", "ahead"), [(0, 1), (10, 1), (29, 2), (30, 3), (1000, 7)])
def test_as_many_items_are_read_ahead_as_the_budget_holds_and_never_fewer_than_one(budget: int, ahead: int) -> None:
    disk = Disk()
    reader = ReadAhead(SIZES, disk.read, num_threads=1, budget=budget)
    assert reader.take("item 0") == "content of item 0"
    assert set(disk.wait_for(1 + ahead)) == set(list(SIZES)[: 1 + ahead])
    for index in range(1, 8):
        assert reader.take(f"item {index}") == f"content of item {index}"
    assert sorted(disk.begun) == sorted(SIZES)
    assert threading.get_ident() in disk.threads  # for the first, as nobody was told of it
    assert len(disk.threads) == 2


def test_any_order_gives_each_item_once() -> None:
    disk = Disk()
    reader = ReadAhead(SIZES, disk.read, num_threads=3, budget=25)
    for name in ("item 5", "item 0", "item 7", "item 1", "item 6", "item 4", "item 3", "item 2"):
        assert reader.take(name) == f"content of {name}"
    assert sorted(disk.begun) == sorted(SIZES)


def test_what_cannot_be_read_fails_where_it_is_asked_for() -> None:
    def read(name: str) -> str:
        if name == "item 1":
            raise OSError("unreadable")
        return name

    reader = ReadAhead(SIZES, read, num_threads=1, budget=0)
    assert reader.take("item 0") == "item 0"
    with pytest.raises(OSError, match="unreadable"):
        reader.take("item 1")
