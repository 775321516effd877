"""Which of several answers are returned."""

from __future__ import annotations

from quire.client import Choice, TokenLogprob
from quire.offline.engine import best_choices


def choice(text: str, *logprobs: float) -> Choice:
    return Choice(text, (), tuple(TokenLogprob(0, logprob, ()) for logprob in logprobs), "stop")


CHOICES = [choice("long", -1.0, -1.0, -1.0), choice("worst", -2.0), choice("best", -0.5, -1.0)]


def test_those_with_the_highest_log_probability_per_token_come_the_best_first() -> None:
    assert [chosen.text for chosen in best_choices(CHOICES, 2)] == ["best", "long"]


def test_where_none_is_left_out_they_stay_in_their_order() -> None:
    assert best_choices(CHOICES, 3) == CHOICES
