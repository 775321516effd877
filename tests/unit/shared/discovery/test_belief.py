"""What a process believes of Redis' answers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.discovery import Part, Parts
from shared.discovery.redis.belief import MAX_MISSING, TOLERANCE, Answer, Belief

LEASE_S = 10.0
ADDRESSES = ("a:1", "b:1", "c:1")


def listing(*addresses: str, at: float, version: str = "g.1") -> Answer:
    return Answer(at, {address: Part(address) for address in addresses}, version, is_empty=not addresses)


def believing(*addresses: str, version: str = "g.1") -> Belief:
    """A belief after a lease of unbroken contact, which ends at 10 s."""
    belief = Belief().after(listing(*addresses, at=0, version=version), 0, LEASE_S)
    for second in range(1, 11):
        belief = belief.after(Answer(second, None), second, LEASE_S)
    assert not belief.parts.is_stale
    return belief


def test_a_listed_part_is_known_at_once_and_stale_until_the_contact_has_lasted_a_lease() -> None:
    belief = Belief().after(listing("a:1", at=0), 0, LEASE_S)
    assert belief.parts.addresses == {"a:1"}
    assert belief.parts.is_stale
    assert not believing("a:1").parts.is_stale


def test_after_a_lease_of_contact_a_missing_part_is_forgotten_at_once() -> None:
    belief = believing("a:1", "b:1").after(listing("a:1", at=11, version="g.2"), 11, LEASE_S)
    assert belief.parts.addresses == {"a:1"}
    assert not belief.parts.is_stale


def test_that_a_model_has_no_part_is_believed_while_there_are_others() -> None:
    nothing = Answer(11, {}, "g.2", is_empty=False)
    belief = believing("a:1").after(nothing, 11, LEASE_S)
    assert belief.parts == Parts({})
    # The same version again says the same.
    assert belief.after(Answer(12, None), 12, LEASE_S).parts == Parts({})


def test_silence_keeps_the_parts_and_marks_them_as_stale() -> None:
    belief = believing("a:1", "b:1").after_silence()
    assert belief.parts.addresses == {"a:1", "b:1"}
    assert belief.parts.is_stale


@pytest.mark.parametrize("reason", ["silence", "new generation", "long pause", "clock ahead", "clock behind"])
def test_once_contact_is_broken_a_missing_part_is_kept_for_a_lease(reason: str) -> None:
    belief, now, clock = believing("a:1", "b:1"), 11.0, 11.0
    version = "h.1" if reason == "new generation" else "g.2"
    if reason == "silence":
        belief = belief.after_silence()
    if reason == "long pause":
        now = clock = 10 + TOLERANCE * LEASE_S + 0.1
    if reason.startswith("clock"):
        clock += (TOLERANCE * LEASE_S + 0.1) * (1 if reason == "clock ahead" else -1)
    start = now
    belief = belief.after(listing("a:1", at=clock, version=version), now, LEASE_S)
    while now - start < LEASE_S:
        assert belief.parts.addresses == {"a:1", "b:1"}
        assert belief.parts.is_stale
        now, clock = now + 1, clock + 1
        belief = belief.after(Answer(clock, None), now, LEASE_S)
    assert belief.parts.addresses == {"a:1"}
    assert not belief.parts.is_stale


def test_an_empty_list_is_never_believed() -> None:
    belief = believing("a:1").after(listing(at=11, version="g.2"), 11, LEASE_S)
    for second in range(12, 100):
        belief = belief.after(Answer(second, None), second, LEASE_S)
        assert belief.parts.addresses == {"a:1"}
        assert belief.parts.is_stale


def test_an_empty_list_at_the_start_is_believed_after_a_lease() -> None:
    assert believing().parts.addresses == frozenset()


def test_missing_parts_are_bounded() -> None:
    belief = Belief()
    for number in range(3 * MAX_MISSING):
        belief = belief.after_silence().after(listing(f"a:{number}", at=number, version=f"g.{number}"), number, LEASE_S)
    assert len(belief.parts.by_address) == MAX_MISSING + 2, "the longest list has one"
    assert f"a:{3 * MAX_MISSING - 1}" in belief.parts.addresses
    assert "a:0" not in belief.parts.addresses


def test_a_fleet_of_any_size_stays_known_when_redis_loses_its_data() -> None:
    belief = believing(*(f"a:{number}" for number in range(2 * MAX_MISSING)))
    belief = belief.after(listing("b:1", at=11, version="h.1"), 11, LEASE_S)
    assert len(belief.parts.by_address) == 2 * MAX_MISSING + 1
    assert belief.parts.is_stale


answers = st.tuples(
    st.frozensets(st.sampled_from(ADDRESSES)),
    st.sampled_from(["g", "h"]),
    st.floats(0.0, 8.0),
    st.sampled_from([0.0, 0.0, 0.0, -20.0, 20.0]),
)


@given(st.lists(st.one_of(st.none(), answers), max_size=60))
def test_a_part_is_forgotten_only_after_a_lease_of_unbroken_contact(
    events: list[tuple[frozenset[str], str, float, float] | None],
) -> None:
    """Each event is a question: None without an answer, else the listed addresses, the generation, the time since the
    last event and by how much Redis' clock jumps."""
    belief, now, clock = Belief(), 0.0, 0.0
    # The test's own account: since when contact has been unbroken, and what each answer has listed since.
    since, last_answer, generation = math.inf, -math.inf, ""
    for index, event in enumerate(events):
        before = belief.parts.addresses
        if event is None:
            belief, last_answer = belief.after_silence(), -math.inf
            assert belief.parts.addresses == before
            assert belief.parts.is_stale
            continue
        listed, new_generation, seconds, jump = event
        now, clock = now + seconds, clock + seconds + jump
        if jump or new_generation != generation or now - last_answer > TOLERANCE * LEASE_S:
            since = now
        last_answer, generation = now, new_generation
        belief = belief.after(listing(*listed, at=clock, version=f"{new_generation}.{index}"), now, LEASE_S)
        assert belief.parts.addresses >= listed
        if now - since < LEASE_S:
            assert belief.parts.addresses == before | listed
            assert belief.parts.is_stale
        elif listed:
            assert belief.parts.addresses == listed
            assert not belief.parts.is_stale
        else:
            assert belief.parts.addresses == before
