"""The router's prompts are those of transformers' `apply_chat_template`, but for differences that have a name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.router.text.threads import TextThreads
from tests.chat_templates.conversations import CONVERSATIONS
from tests.chat_templates.published import distinct, ours, published
from tests.chat_templates.table import Outcome, compare, summary

# In the order of CONVERSATIONS.
OUTCOMES = {
    "calls_from_content": "same added same same same same same lacks",
    "calls_left_out": "same text lacks same same lacks same added",
    "channels": "same added same same same same same same",
    "either_content": "same same same same same same same same",
    "named": "same text same same same same same same",
    "needs_tools": "refused refused refused refused plain plain plain added",
    "other_variables": "same added same same added added added added",
    "parts_as_json": "same text same same plain plain plain added",
    "strict_turns": "same text refused same added added added added",
    "system_left_out": "same added lacks same plain added plain added",
    "tools_left_out": "same added same same added added added added",
    "tools_of_messages": "same text same same added added added added",
    "wants_system": "refused refused added refused refused added refused added",
}


@pytest.fixture(scope="module")
def threads() -> Iterator[TextThreads]:
    threads = TextThreads(1)
    yield threads
    threads.close()


@pytest.mark.parametrize("name", ours())
def test_templates_of_published_shapes_have_the_outcomes_that_are_known(name: str, threads: TextThreads) -> None:
    row = compare(ours()[name], threads)
    assert list(row) == list(CONVERSATIONS)
    assert " ".join(outcome.value for outcome in row.values()) == OUTCOMES[name]


@pytest.mark.skipif(not published(), reason="the published templates are not here")
@pytest.mark.parametrize("name", published())
def test_every_difference_of_a_published_template_has_a_name(name: str, threads: TextThreads) -> None:
    row = compare(published()[name], threads)
    assert Outcome.DIFFERS not in row.values()
    # A text in turns is what every template is for.
    assert row["turns"] in (Outcome.SAME, Outcome.ADDED, Outcome.REFUSED)


def test_the_summary_counts_each_template_once() -> None:
    assert list(distinct({"a": "{{ x }}", "b": "{{ x }}\n", "c": "{{ y }}"})) == ["a", "c"]
    rows = {"a": {"user": Outcome.SAME, "parts": Outcome.TEXT}, "c": {"user": Outcome.SAME, "parts": Outcome.DIFFERS}}
    assert summary(rows) == (
        "2 published templates, 4 prompts: same 2, added 0, plain 0, text 1, refused 0, lacks 0, DIFFERS 1"
    )
