"""Blocks that sequences share, copy, lose and get back: prefix caching, copy-on-write, swapping."""

from __future__ import annotations

from typing import Any

import pytest

from services.scheduler.core.config import PreemptionMode
from services.scheduler.core.content import Content
from services.scheduler.core.plan import StepResult
from services.scheduler.core.prefix_cache import PrefixCache
from services.scheduler.core.request import SequenceRequest
from services.scheduler.core.sequence import ErrorKind, Failure, SequencePrefix
from tests.unit.scheduler.driver import answer, request, rows, scheduler


def test_a_second_sequence_finds_the_blocks_of_the_first() -> None:
    core = scheduler(max_num_batched_tokens=16)
    core.submit(request("a", prompt_len=10, cache_salt=""))
    answer(core, core.schedule(), 1)
    core.submit(request("b", prompt_len=11, cache_salt=""))
    plan = core.schedule()
    # Two blocks of four are full; the third is the sequence's own.
    assert rows(plan) == [(1, 10, 1), (2, 8, 3)]
    assert plan is not None
    (new,) = plan.new_sequences
    assert new.block_ids[:2] == core._roster.running[0].block_ids[:2]
    assert core.counters.prefix_cache_hits == 8


def test_blocks_are_found_after_their_sequence_has_ended_and_not_by_another_tenant() -> None:
    core = scheduler(max_num_batched_tokens=16)
    core.submit(request("a", prompt_len=10, max_tokens=1, cache_salt=""))
    assert answer(core, core.schedule(), 1).finished
    assert (core.memory.pool.num_used, core.memory.pool.num_reusable) == (0, 2)
    core.submit(request("other", prompt_len=10, cache_salt="tenant"))
    core.submit(request("same", prompt_len=10, cache_salt=""))
    assert rows(core.schedule()) == [(2, 0, 10), (3, 8, 2)]


def test_blocks_are_shared_up_to_the_first_content_that_differs() -> None:
    """The ids of all prompts are equal; blocks have four tokens."""
    core = scheduler(max_num_batched_tokens=32, max_num_seqs=8, num_blocks=64)
    image, other = Content(5, 9, b"image"), Content(14, 17, b"other")
    prompts = {
        "both": ((image, other), 0),
        "again": ((image, other), 16),
        "one": ((image,), 12),
        "another second": ((image, Content(14, 17, b"image")), 12),
        "later": ((Content(6, 10, b"image"), other), 4),
        "longer": ((Content(5, 10, b"image"), other), 4),
        "none": ((), 4),
        "none again": ((), 16),
    }
    for key, (contents, num_found) in prompts.items():
        core.submit(request(key, prompt_len=20, max_tokens=1, cache_salt="", contents=contents))
        plan = core.schedule()
        assert [row[1] for row in rows(plan)] == [num_found], key
        assert plan is not None
        answer(core, plan, *plan.rows.wire_ids)
        core.check_integrity()


def test_a_prefix_counts_only_once_the_step_that_computes_it_was_applied() -> None:
    core = scheduler(max_num_batched_tokens=16)
    core.submit(request("a", prompt_len=10, cache_salt=""))
    first = core.schedule()
    core.submit(request("b", prompt_len=10, cache_salt=""))
    # It waits for what is being computed, as it would compute the same.
    assert rows(core.schedule()) == [(1, 10, 1)]
    assert core.num_waiting == 1
    answer(core, first, 1)
    assert rows(core.schedule()) == [(1, 11, 1), (2, 8, 2)]


def test_what_waits_for_a_prefix_computes_it_when_the_other_is_gone() -> None:
    core = scheduler(max_num_batched_tokens=16)
    core.submit(request("a", prompt_len=10, cache_salt=""))
    core.schedule()
    core.submit(request("b", prompt_len=10, cache_salt=""))
    core.schedule()
    core.abort("a")
    assert rows(core.schedule()) == [(2, 0, 10)]


def test_a_whole_prompt_that_is_cached_still_computes_its_last_block() -> None:
    core = scheduler(max_num_batched_tokens=16)
    core.submit(request("a", prompt_len=8, max_tokens=1, cache_salt=""))
    answer(core, core.schedule(), 1)
    core.submit(request("b", prompt_len=8, cache_salt=""))
    assert rows(core.schedule()) == [(2, 4, 4)]


def test_a_sequence_that_fails_takes_what_it_computed_out_of_the_cache() -> None:
    core = scheduler(max_num_batched_tokens=16)
    core.submit(request("a", prompt_len=10, cache_salt=""))
    answer(core, core.schedule(), 1)
    plan = core.schedule()
    assert plan is not None
    core.apply(StepResult(plan.step_id, [], [], [(1, Failure(ErrorKind.INTERNAL, "not a number"))]))
    assert len(core.memory.prefix_cache) == 0
    core.submit(request("b", prompt_len=10, cache_salt=""))
    assert rows(core.schedule()) == [(2, 0, 10)]


def test_choices_share_the_prompt_and_copy_its_last_block() -> None:
    core = scheduler(max_num_batched_tokens=16)
    for choice in range(3):
        core.submit(request(f"a{choice}", prompt_len=11, choice_index=choice, group="a", cache_salt=""))
    first = core.schedule()
    assert rows(first) == [(1, 0, 11)]
    answer(core, first, 1)
    plan = core.schedule()
    assert plan is not None
    # Each computes the prompt's last token only, for a token of its own.
    assert rows(plan) == [(1, 11, 1), (2, 10, 1), (3, 10, 1)]
    whole, second, third = (sequence.block_ids for sequence in core._roster.running)
    assert second[:2] == third[:2] == whole[:2]
    assert plan.moves.copies == [(whole[2], second[2]), (whole[2], third[2])]
    core.check_integrity()


def test_the_least_recently_used_blocks_are_evicted_and_of_a_sequence_the_last_first() -> None:
    core = scheduler(num_blocks=8, max_model_len=32, max_num_batched_tokens=32)
    for key in ("old", "new"):
        core.submit(request(key, prompt_len=12, max_tokens=1))
        plan = core.schedule()
        answer(core, plan, *(row[0] for row in rows(plan)))
    assert (core.memory.pool.num_reusable, len(core.memory.prefix_cache)) == (6, 6)
    core.submit(request("third", prompt_len=14, max_tokens=1))  # takes two blank blocks, and two of the oldest
    plan = core.schedule()
    answer(core, plan, *(row[0] for row in rows(plan)))
    core.submit(request("back", prompt_len=12, cache_salt="old"))
    core.submit(request("again", prompt_len=12, cache_salt="new"))
    assert [row[1:] for row in rows(core.schedule())] == [(4, 8), (8, 4)]


def test_choices_whose_prompt_nobody_has_computed_yet_compute_it_together() -> None:
    core = scheduler(max_num_batched_tokens=16)
    for choice in range(3):
        core.submit(request(f"a{choice}", prompt_len=3, choice_index=choice, group="a", cache_salt=""))
    plan = core.schedule()
    assert rows(plan) == [(1, 0, 3), (2, 0, 3), (3, 0, 3)]
    assert plan is not None
    assert not plan.moves.copies


def test_choices_share_their_prompt_in_a_cache_full_of_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each choice that starts evicts a block, so the next one is searched for anew: once each, and no more."""
    core = scheduler(num_blocks=16, max_num_seqs=8, max_num_batched_tokens=64)
    for number in range(4):
        core.submit(request(f"old {number}", prompt_len=16, max_tokens=1))
        assert answer(core, core.schedule(), number + 1).finished
    assert core.memory.pool.num_reusable == 16
    for index in range(7):
        core.submit(request(f"{index}", prompt_len=9, cache_salt="", choice_index=index, group="g", turn_id="g"))
    cache, num_searches = core.memory.prefix_cache, 0

    def match(*arguments: Any) -> list[SequencePrefix[SequenceRequest]]:
        nonlocal num_searches
        num_searches += 1
        return PrefixCache.match(cache, *arguments)

    monkeypatch.setattr(cache, "match", match)
    answer(core, core.schedule(), 5)
    num_searches = 0
    assert rows(core.schedule())[1:] == [(wire_id, 8, 1) for wire_id in range(6, 12)]
    core.check_integrity()
    assert num_searches <= 6


def test_what_was_found_for_one_choice_is_not_given_to_another_once_its_beginning_is_gone() -> None:
    """The last of it may still be known: it is being computed, behind a block that was forgotten."""
    core = scheduler(max_num_batched_tokens=16)
    core.submit(request("old", prompt_len=5, max_tokens=1, cache_salt=""))
    answer(core, core.schedule(), 1)
    first, second = (
        core.submit(request(f"{index}", prompt_len=9, cache_salt="", choice_index=index, group="g", turn_id="g"))
        for index in range(2)
    )
    core.schedule()
    assert core.memory.find(second) == first.prefixes
    assert [prefix.is_computed for prefix in first.prefixes] == [True, False]
    core.memory.prefix_cache.clear()
    assert core.memory.find(second) == []
    core.check_integrity()


def test_a_sequence_that_gave_way_comes_back_from_the_host() -> None:
    core = scheduler(
        num_blocks=4, max_model_len=16, max_num_batched_tokens=16, enable_prefix_caching=False, num_host_blocks=4,
        preemption_mode=PreemptionMode.SWAP,
    )  # fmt: skip
    core.submit(request("old", prompt_len=7, max_tokens=9))
    core.submit(request("young", prompt_len=7, max_tokens=9))
    answer(core, core.schedule(), 1, 2)
    young = core._roster.running[1]
    blocks = young.block_ids.copy()
    answer(core, core.schedule(), 1, 2)  # both blocks of both are full now
    plan = core.schedule()
    assert plan is not None
    # Eight tokens are computed, of the nine that are known.
    assert [block_id for block_id, _ in plan.moves.swap_out] == blocks
    slots = [slot for _, slot in plan.moves.swap_out]
    core.check_integrity()
    core.abort("old")
    resumed = core.schedule()
    assert resumed is not None
    assert rows(resumed) == [(3, 8, 1)]
    assert [slot for slot, _ in resumed.moves.swap_in] == slots
    assert [block_id for _, block_id in resumed.moves.swap_in] == young.block_ids[:2]
    core.check_integrity()
    answer(core, plan, 1)
    answer(core, resumed, 3)
    core.abort("young")
    assert core.memory.host.num_free == 4
    core.check_integrity()


def test_copying_is_weighed_against_computing() -> None:
    for seconds_per_block, swaps in ((1e-4, True), (1.0, False)):
        core = scheduler(
            num_blocks=4, max_model_len=16, max_num_batched_tokens=16, enable_prefix_caching=False, num_host_blocks=4,
            seconds_per_swapped_block=seconds_per_block,
        )  # fmt: skip
        for num_tokens in (1, 8, 1, 8):
            core.step_times.observe(num_tokens, num_tokens**2 / 2, 0.01 * num_tokens)
        core.submit(request("old", prompt_len=7, max_tokens=9))
        core.submit(request("young", prompt_len=7, max_tokens=9))
        answer(core, core.schedule(), 1, 2)
        answer(core, core.schedule(), 1, 2)
        plan = core.schedule()
        assert plan is not None
        assert bool(plan.moves.swap_out) == swaps


def test_evicted_blocks_stay_on_the_host_and_come_back_when_asked_for() -> None:
    core = scheduler(num_blocks=4, max_model_len=16, max_num_batched_tokens=16, num_host_blocks=3)
    core.submit(request("a", prompt_len=13, max_tokens=1, cache_salt=""))
    answer(core, core.schedule(), 1)
    core.submit(request("other", prompt_len=13, max_tokens=1))
    evicting = core.schedule()
    assert evicting is not None
    assert len(evicting.moves.swap_out) == 3
    assert core.memory.host.num_cached == 3
    answer(core, evicting, 2)
    core.submit(request("b", prompt_len=13, max_tokens=2, cache_salt=""))
    core.submit(request("c", prompt_len=13, max_tokens=2, cache_salt=""))
    back = core.schedule()
    assert rows(back) == [(3, 12, 1)]
    assert back is not None
    saved = {slot for _, slot in evicting.moves.swap_out}
    assert {slot for slot, _ in back.moves.swap_in} == saved
    assert core.counters.prefix_cache_hits == 12
    # The other waits for the copy to be done, and then shares it.
    assert core.num_waiting == 1
    core.check_integrity()
    answer(core, back, 3)
    assert core.num_running == 1
    core.check_integrity()


def test_blocks_of_a_worker_that_was_lost_are_lost_on_the_host_too() -> None:
    core = scheduler(num_blocks=4, max_model_len=16, max_num_batched_tokens=16, num_host_blocks=3)
    core.submit(request("a", prompt_len=13, max_tokens=1, cache_salt=""))
    answer(core, core.schedule(), 1)
    core.submit(request("other", prompt_len=13, max_tokens=1))
    core.schedule()
    core.reset()
    assert core.memory.host.num_cached == 0
    core.submit(request("b", prompt_len=13, max_tokens=2, cache_salt=""))
    core.abort("other")
    assert rows(core.schedule()) == [(1, 0, 13)]
    core.check_integrity()
