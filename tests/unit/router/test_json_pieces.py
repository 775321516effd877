"""A large answer is encoded while it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from services.router.http import json as json_pieces
from services.router.http.json import Encoded, Items, in_pieces, texts_of


@pytest.mark.parametrize(
    "value",
    [
        {}, [], "", None, 1.5, {"a": {"b": []}, "c": [1, 2], "d": [{"e": "f"}, {}], "g": ["h", "é\n\""]},
        [["a"], ["b"]], list(range(3000)), "é\"\\\n" * 9000, {"x": [None, 1, "y"]},
    ],
)  # fmt: skip
def test_the_texts_make_up_the_value(value: object) -> None:
    assert json.loads("".join(texts_of(value))) == value


def test_items_are_an_array() -> None:
    value = {"a": Items([1, {"b": 2}, Encoded('"c"')]), "d": Items([]), "e": [Items([3])]}
    assert json.loads("".join(texts_of(value))) == {"a": [1, {"b": 2}, "c"], "d": [], "e": [[3]]}


def test_no_text_is_long() -> None:
    texts = list(texts_of({"a": "x" * 10**6, "b": list(range(10**5))}))
    assert max(map(len, texts)) < 20_000


def test_items_are_made_when_their_piece_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 10)
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    pieces = in_pieces(texts_of({"n": Items(numbers())}))
    first = next(pieces)
    assert len(made) < 10
    assert max(map(len, [first, *pieces])) < 20
    assert len(made) == 100


def test_a_piece_has_a_bounded_number_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "PIECE_TEXTS", 3)
    assert list(in_pieces(["a"] * 7)) == [b"aaa", b"aaa", b"a"]
