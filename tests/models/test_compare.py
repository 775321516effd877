"""The comparison with transformers notices keys and values that are in a wrong place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from services.worker.pages import PlainPageCopies
from services.worker.plan import I64
from tests.models.cases import ALL
from tests.models.compare import BLOCK_SIZE, compare
from tests.unit.worker.driver import Driver, Events, Request

pytestmark = pytest.mark.usefixtures("one_thread")

Break = Callable[[pytest.MonkeyPatch], None]
Found = tuple[list[int], int, int]
_save, _load, _copy = PlainPageCopies.save, PlainPageCopies.load, PlainPageCopies.copy


def _from_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks come back from the same slot."""
    monkeypatch.setattr(
        PlainPageCopies, "load", lambda copies, slots, blocks: _load(copies, np.full_like(slots, slots[0]), blocks)
    )


def _never_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainPageCopies, "save", lambda *_: None)


def _without_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer's values do not come back."""

    def load(copies: PlainPageCopies, slots: I64, blocks: I64) -> None:
        values = copies._tensors[-1]
        kept = values[blocks].clone()
        _load(copies, slots, blocks)
        values[blocks] = kept

    monkeypatch.setattr(PlainPageCopies, "load", load)


def _copied_from_another_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainPageCopies, "copy", lambda copies, sources, to: _copy(copies, (sources + 1) % 200, to))


def _finds(monkeypatch: pytest.MonkeyPatch, change: Callable[[Driver, Request, Found], Found]) -> None:
    find = Driver._find_computed
    monkeypatch.setattr(
        Driver, "_find_computed", lambda scheduler, request: change(scheduler, request, find(scheduler, request))
    )


def _hit_at_a_wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence takes a block further back in the prefix for its first."""

    def change(scheduler: Driver, request: Request, found: Found) -> Found:
        blocks, num_shared, num_tokens = found
        if request.prefix is None or not num_shared:
            return found
        return [request.prefix.blocks[2], *blocks[1:]], num_shared, num_tokens

    _finds(monkeypatch, change)


def _hit_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence takes one block more than it shares with the prefix."""

    def change(scheduler: Driver, request: Request, found: Found) -> Found:
        _, num_shared, num_tokens = found
        if request.prefix is None or num_shared != 2:
            return found
        return request.prefix.blocks[:3], 3, num_tokens + 4

    _finds(monkeypatch, change)


def _goes_on_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preempted sequence skips the first block of what it must compute again."""

    def change(scheduler: Driver, request: Request, found: Found) -> Found:
        if found[0] or not request.num_preemptions or len(request.prompt) <= BLOCK_SIZE:
            return found
        return [scheduler._take_block()], 0, BLOCK_SIZE

    _finds(monkeypatch, change)


BROKEN = [
    _from_one_slot,
    _never_saved,
    _without_the_last_layer,
    _copied_from_another_block,
    _hit_at_a_wrong_position,
    _hit_too_far,
    _goes_on_too_late,
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__.strip("_").replace("_", " "))
@pytest.mark.parametrize("name", ["gpt2", "deepseek_v3"])
def test_a_fault_is_noticed(name: str, broken: Break, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=r"instead of|log probabilities differ"):
        compare(next(case for case in ALL if str(case) == name), tmp_path)


@pytest.mark.parametrize("what", Events.__dataclass_fields__)
def test_what_did_not_happen_is_named(what: str) -> None:
    events = Events(**{name: int(name != what) for name in Events.__dataclass_fields__})
    assert events.missing() == [what]
