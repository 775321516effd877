"""A body's values are counted before any of them becomes an object, and too many are refused with the field's name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.errors import ApiError
from services.router.limits import json_bounds
from services.router.limits.json_bounds import check_json, check_json_texts

LIMITS = ("MAX_CONTAINERS", "MAX_FIELDS", "MAX_STRINGS", "MAX_ITEMS")
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('a"\\:,{}[] é\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('a"\\:,{}[]é', max_size=4), inner),
)


def counts(value: Any, in_array: bool = False) -> dict[str, int]:
    """By limit, how many values of its kind there are."""
    total = dict.fromkeys(LIMITS, 0)
    if isinstance(value, dict | list):
        total["MAX_CONTAINERS"] += 1
        total["MAX_FIELDS"] += len(value) if isinstance(value, dict) else 0
        for inner in value.values() if isinstance(value, dict) else value:
            for name, count in counts(inner, isinstance(value, list)).items():
                total[name] += count
    elif in_array:
        total["MAX_STRINGS"] += isinstance(value, str)
        total["MAX_ITEMS"] += 1
    return total


@pytest.mark.thorough
@given(
    value=st.dictionaries(st.text("ab", max_size=2), VALUES), is_ascii=st.booleans(), indent=st.sampled_from([None, 1])
)
def test_a_body_with_as_many_values_as_allowed_passes(
    value: dict[str, Any], is_ascii: bool, indent: int | None
) -> None:
    body = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        for name, count in counts(value).items():
            patch.setattr(json_bounds, name, count)
        check_json(body)


@given(value=st.dictionaries(st.text("ab", max_size=2), VALUES), is_ascii=st.booleans(), limit=st.sampled_from(LIMITS))
def test_a_body_with_one_value_more_is_refused(value: dict[str, Any], is_ascii: bool, limit: str) -> None:
    count = counts(value)[limit]
    if count == 0:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bounds, limit, count - 1)
        with pytest.raises(ApiError):
            check_json(json.dumps(value, ensure_ascii=is_ascii).encode())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "m", "logit_bias": {str(number): 1 for number in range(100)}}, "logit_bias"),
        ({"options": {f"o{number}": 1 for number in range(100)}}, "options"),
        ({"messages": [{"content": "a"}, {"content": [{"type": "text"}] * 100}]}, "messages[1].content"),
        ({"prompt": [[1, 2], [7] * 100]}, "prompt[1]"),
        ({"stop": ["a"] * 100}, "stop"),
        ({"tools": [{"function": {"parameters": {"properties": {f"p{n}": 1 for n in range(100)}}}}]},
         "tools[0].function.parameters.properties"),
        ({f"u{number}": 1 for number in range(100)}, "u50"),
        ({"a\\\"b": [{}] * 100}, "a\\\"b"),
    ],
)  # fmt: skip
def test_the_field_is_named(body: Any, param: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIMITS:
        monkeypatch.setattr(json_bounds, name, 50)
    with pytest.raises(ApiError) as caught:
        check_json(json.dumps(body).encode())
    assert caught.value.param == param
    assert f"Invalid '{param}'" in caught.value.message
    assert "at most 50" in caught.value.message


def test_what_a_text_holds_does_not_count() -> None:
    text = '[1, {"a": ["b"]}], ' * 100_000
    check_json(json.dumps({"prompt": text, "input": [text, text]}).encode())


@pytest.mark.parametrize(
    "body", [b"", b"]" * 10**6, b"[" * 10**6, b'{"a": "' + b"\\" * (10**6 + 1), b'"a' * 10**6, b"\xff" * 10**6]
)
def test_what_is_no_json_is_refused_or_left_to_the_parser(body: bytes) -> None:
    try:
        check_json(body)
    except ApiError as error:
        assert "at most" in error.message  # noqa: PT017  # either is right


@pytest.mark.parametrize("rest", [b'\\"', b'\\"[', b'\\" ', b'\\\\\\"', b'\\":'])
def test_a_text_that_never_ends_is_read_once(rest: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not again from each quote in it."""
    found: list[tuple[int, int]] = []

    class Counted:
        def finditer(self, body: bytes) -> Iterator[re.Match[bytes]]:
            for token in pattern.finditer(body):
                found.append(token.span())
                yield token

    pattern = json_bounds._TOKEN
    monkeypatch.setattr(json_bounds, "_TOKEN", Counted())
    monkeypatch.setattr(json_bounds, "MAX_FIELDS", 50)
    check_json(b'{"a":"' + b":" * 100 + rest * 1000)
    assert found == [(0, 1), (1, 5), (5, 6)]


def test_texts_with_json_hold_together_what_one_body_may(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIMITS:
        monkeypatch.setattr(json_bounds, name, 50)
    code = json.dumps({"text": "a[i], {b: c}, " * 100})
    some = json.dumps([{"a": 1}] * 20)
    # What stands in their texts does not count, whatever their number.
    check_json_texts([("first", code), ("second", some), ("third", code), ("fourth", some[:-1])])
    with pytest.raises(ApiError) as caught:
        check_json_texts([("first", code), ("second", some), ("third", some), ("fourth", some)])
    assert caught.value.param == "fourth"
    assert "at most 50" in caught.value.message
