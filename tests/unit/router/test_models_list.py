"""Pages of the list of models in Anthropic's form."""

from __future__ import annotations

import pytest

from services.router.apis.anthropic.models import anthropic_list

CARDS = [{"id": name} for name in "abcde"]


@pytest.mark.parametrize(
    ("limit", "after_id", "before_id", "shown", "has_more"),
    [
        (None, "", "", "abcde", False),
        (2, "", "", "ab", True),
        (2, "b", "", "cd", True),
        (2, "c", "", "de", False),
        (2, "", "e", "cd", True),
        (3, "", "d", "abc", False),
        (2, "a", "e", "bc", True),
        (None, "a", "e", "bcd", False),
        (2, "d", "b", "", False),
    ],
)
def test_a_page_is_next_to_the_model_that_bounds_it(
    limit: int | None, after_id: str, before_id: str, shown: str, has_more: bool
) -> None:
    page = anthropic_list(CARDS, limit, after_id, before_id)
    assert "".join(card["id"] for card in page["data"]) == shown
    assert page["has_more"] is has_more
    assert (page["first_id"], page["last_id"]) == ((shown[0], shown[-1]) if shown else (None, None))
