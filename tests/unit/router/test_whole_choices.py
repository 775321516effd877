"""Deltas for who does not read along: one per choice, in pieces that fit a message."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from services.router.apis.typed.whole_choices import whole_choices
from services.router.dispatch.work import FinishReason
from services.router.generation import choice_delta
from services.router.generation.choice_delta import ChoiceDelta


async def deltas() -> AsyncIterator[list[ChoiceDelta]]:
    yield [ChoiceDelta(0, "a", [1], [], None), ChoiceDelta(1, "x", [2, 3], [], None)]
    yield [ChoiceDelta(1, "", [4], [], None)]
    yield [ChoiceDelta(1, "y", [], [], FinishReason.LENGTH)]
    yield [ChoiceDelta(0, "b", [5], [], FinishReason.STOP)]


async def test_a_choice_comes_when_it_is_over() -> None:
    assert [news async for news in whole_choices(deltas())] == [
        [ChoiceDelta(1, "xy", [2, 3, 4], (), FinishReason.LENGTH)],
        [ChoiceDelta(0, "ab", [1, 5], (), FinishReason.STOP)],
    ]


async def test_a_long_text_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token can have hundreds of characters."""
    monkeypatch.setattr(choice_delta, "MAX_CHARS_OF_DELTA", 1)

    assert [news async for news in whole_choices(deltas())] == [
        [ChoiceDelta(1, "x", [2, 3, 4], (), None)],
        [ChoiceDelta(1, "y", [], (), FinishReason.LENGTH)],
        [ChoiceDelta(0, "a", [1, 5], (), None)],
        [ChoiceDelta(0, "b", [], (), FinishReason.STOP)],
    ]


async def test_a_long_choice_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice_delta, "MAX_TOKENS_OF_DELTA", 2)

    assert [news async for news in whole_choices(deltas())] == [
        [ChoiceDelta(1, "xy", [2, 3], (), None)],
        [ChoiceDelta(1, "", [4], (), FinishReason.LENGTH)],
        [ChoiceDelta(0, "ab", [1, 5], (), FinishReason.STOP)],
    ]
