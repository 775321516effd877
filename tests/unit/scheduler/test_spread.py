"""The sequences of a lost worker go to the others by load, where their prefixes are, and before new ones."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core import SequenceRequest, share_out
from services.scheduler.core.scheduler import Scheduler
from tests.unit.scheduler.driver import answer, request, scheduler

COMMON = array("I", range(100, 116))  # four blocks


def with_prefix(key: str, *last: int, max_tokens: int = 4) -> SequenceRequest:
    return request(key, max_tokens=max_tokens, prompt_token_ids=COMMON + array("I", last), cache_salt="")


def started(core: Scheduler[SequenceRequest]) -> list[object]:
    plan = core.schedule()
    assert plan is not None
    answer(core, plan, *plan.sampling_wire_ids)
    return [new.sequence.request.key for new in plan.new_sequences]


def keys(core: Scheduler[SequenceRequest]) -> list[object]:
    return [sequence.request.key for sequence in core.drain()]


def move(lost: Scheduler[SequenceRequest], *others: Scheduler[SequenceRequest]) -> None:
    lost.reset()
    for other, sequences in zip(others, share_out(lost.drain(others), others), strict=True):
        for sequence in sequences:
            other.adopt(sequence)


def test_each_survivor_gets_a_part_and_the_busier_one_gets_less() -> None:
    lost, idle, busy = scheduler(max_num_seqs=8), scheduler(max_num_seqs=8), scheduler(max_num_seqs=8)
    busy.submit(request("old", max_tokens=30))
    for number in range(6):
        lost.submit(request(f"{number}", max_tokens=10))
    move(lost, idle, busy)
    assert (idle.num_waiting, busy.num_waiting) == (4, 3)


def test_the_larger_cache_gets_more() -> None:
    lost, small, large = scheduler(max_num_seqs=8), scheduler(max_num_seqs=8), scheduler(max_num_seqs=8, num_blocks=48)
    for number in range(8):
        lost.submit(request(f"{number}"))
    move(lost, small, large)
    assert (small.num_waiting, large.num_waiting) == (2, 6)


def test_a_survivor_without_a_free_slot_comes_last() -> None:
    lost, full, free = scheduler(), scheduler(max_num_seqs=1), scheduler(max_num_seqs=4)
    full.submit(request("short", max_tokens=1))
    free.submit(request("long", max_tokens=50))
    lost.submit(request("lost"))
    move(lost, full, free)
    assert keys(free) == ["long", "lost"]


def test_a_sequence_goes_where_its_prefix_is_cached_and_does_not_compute_it_again() -> None:
    lost, empty, cached = scheduler(), scheduler(), scheduler()
    cached.submit(with_prefix("first", 1, max_tokens=1))
    while cached.num_running + cached.num_waiting:
        started(cached)
    cached.submit(request("other", max_tokens=8))
    lost.submit(with_prefix("lost", 2))
    move(lost, empty, cached)
    started(cached)
    assert cached.counters.prefix_cache_hits == len(COMMON)
    assert empty.num_waiting == 0


def test_sequences_with_a_common_prefix_go_together_while_the_load_allows() -> None:
    lost, one, other = scheduler(max_num_seqs=8), scheduler(max_num_seqs=8), scheduler(max_num_seqs=8)
    for number in range(2):
        lost.submit(with_prefix(f"a{number}", number))
        lost.submit(request(f"b{number}", prompt_len=16))
    move(lost, one, other)
    places = [set(keys(core)) for core in (one, other)]
    assert any({"a0", "a1"} <= place for place in places)
    assert all(place & {"b0", "b1"} for place in places)


def test_a_common_prefix_is_computed_again_rather_than_that_one_survivor_does_all() -> None:
    lost, one, other = (scheduler(max_num_seqs=16, max_num_batched_tokens=16) for _ in range(3))
    for number in range(8):
        lost.submit(with_prefix(f"{number}", number, max_tokens=20))
    move(lost, one, other)
    assert (one.num_waiting, other.num_waiting) == (4, 4)


def test_only_equal_salts_count_as_a_common_prefix() -> None:
    lost, one, other = scheduler(), scheduler(), scheduler()
    for salt in "ab":
        lost.submit(request(salt, prompt_token_ids=COMMON, cache_salt=salt))
    move(lost, one, other)
    assert (one.num_waiting, other.num_waiting) == (1, 1)


def test_what_ran_goes_on_first_in_the_order_of_arrival() -> None:
    lost, taker = scheduler(), scheduler(max_num_seqs=6, max_num_batched_tokens=64)
    lost.submit(request("a"))
    taker.submit(request("b"))
    lost.submit(request("c"))
    started(lost)
    taker.submit(request("d"))
    move(lost, taker)
    taker.submit(request("e"))
    assert started(taker) == ["a", "c", "b", "d", "e"]


def test_what_waited_keeps_its_arrival_and_the_time_it_has_waited() -> None:
    lost, taker = scheduler(max_num_seqs=1), scheduler(max_num_seqs=6, max_num_batched_tokens=64)
    lost.submit(request("runs", max_tokens=40))
    started(lost)
    lost.submit(request("waits"))
    for _ in range(10):
        started(lost)
    taker.submit(request("new"))  # has all of its delay before it
    move(lost, taker)
    assert started(taker) == ["runs", "waits", "new"]


def test_what_another_scheduler_of_the_router_had_accepted_goes_before_new_ones() -> None:
    core = scheduler(max_num_seqs=6, max_num_batched_tokens=64)
    core.submit(request("old"))
    started(core)
    core.submit(request("new"))
    core.submit(request("moved", was_accepted=True))
    core.submit(request("moved too", was_accepted=True))
    core.submit(request("in the middle", was_accepted=True, output_token_ids=array("I", [1])))
    assert started(core) == ["in the middle", "moved", "moved too", "new"]


def test_a_sequence_that_comes_back_to_a_scheduler_is_found_once_in_its_queue() -> None:
    one, other = scheduler(max_num_seqs=1), scheduler()
    for key in "abc":
        one.submit(request(key))
    move(one, other)
    move(other, one)
    one.check_integrity()
    assert keys(one) == ["a", "b", "c"]
    assert one.schedule() is None


@given(
    sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30), st.integers(1, 20)), max_size=20),
    lengths=st.lists(st.integers(20, 64), min_size=1, max_size=3),
)
def test_each_sequence_goes_to_exactly_one_scheduler_that_can_run_it(
    sizes: list[tuple[int, int, int]], lengths: list[int]
) -> None:
    lost = scheduler()
    for number, (family, prompt_len, max_tokens) in enumerate(sizes):
        prompt = array("I", [family] * prompt_len)
        lost.submit(request(f"{number}", max_tokens=max_tokens, prompt_token_ids=prompt, cache_salt=""))
    takers = [scheduler(max_model_len=length) for length in lengths]
    shares = share_out(lost.drain(takers), takers)
    moved = [sequence for share in shares for sequence in share]
    left = lost.drain()
    assert len({sequence.request.key for sequence in (*moved, *left)}) == len(moved) + len(left) == len(sizes)
    for taker, share in zip(takers, shares, strict=True):
        assert all(taker.fits(sequence.request) for sequence in share)
        assert [sequence.arrival for sequence in share] == sorted(sequence.arrival for sequence in share)
    assert not any(taker.fits(sequence.request) for taker in takers for sequence in left)
