"""Stop strings, against a naive search over the whole text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.text.stop_strings import StopMatcher, StopStrings

# A small alphabet makes overlaps likely.
texts = st.text(alphabet="abAé🎉", max_size=30)
stop_lists = st.lists(st.text(alphabet="abAé🎉", min_size=1, max_size=5), min_size=1, max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, int | None]:
    """The text before the stop string that completes first (of several that do, the longest), and where it ends."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], end
    return text, None


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(StopStrings(stops))
    sent = ""
    for piece in pieces:
        sent += matcher.push(piece)
        if matcher.stopped:
            return sent, True
    return sent + matcher.flush(), False


@settings(max_examples=500)
@given(pieces=st.lists(texts, max_size=8), stops=stop_lists)
def test_any_pieces_end_where_the_naive_search_says(pieces: list[str], stops: list[str]) -> None:
    text, end = naive("".join(pieces), stops)
    assert run(pieces, stops) == (text, end is not None)


@settings(max_examples=300)
@given(text=texts, stops=stop_lists)
def test_only_what_could_still_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    sent = ""
    for position, character in enumerate(text):
        sent += matcher.push(character)
        if matcher.stopped:
            return
        so_far = text[: position + 1]
        longest = max(
            (length for stop in stops for length in range(1, len(stop)) if so_far.endswith(stop[:length])), default=0
        )
        assert len(so_far) - len(sent) == longest


def test_a_stop_string_inside_another_ends_the_text_first() -> None:
    assert run(["abcd"], ["abcd", "bc"]) == ("a", True)


def test_what_was_held_back_is_sent_at_the_end() -> None:
    assert run(["Hello ST", "OP"], ["STOPPED"]) == ("Hello STOP", False)


def test_the_stop_string_that_ended_the_text_is_known() -> None:
    for pieces in (["one two three"], list("one two three"), ["one t", "wo three"]):
        matcher = StopMatcher(StopStrings(["three", "wo", "two"]))
        text = ""
        for piece in pieces:
            text += matcher.push(piece)
            if matcher.stopped:
                break
        # Of those that end at once, the longest.
        assert (text, matcher.found) == ("one ", "two")
    assert StopMatcher(StopStrings(["x"])).found == ""
