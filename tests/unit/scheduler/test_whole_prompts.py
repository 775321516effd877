"""`--no-enable-chunked-prefill`: every prompt is computed in one step, beside decodes where there is room."""

from __future__ import annotations

from tests.unit.scheduler.driver import answer, request, rows, scheduler


def test_a_prompt_waits_for_a_step_that_holds_all_of_it() -> None:
    core = scheduler(chunked_prefill=False, max_num_batched_tokens=8, max_model_len=8)
    for key, prompt_len, max_tokens in (("a", 3, 3), ("b", 3, 3), ("c", 7, 1)):
        core.submit(request(key, prompt_len, max_tokens))
    plan = core.schedule()
    assert rows(plan) == [(1, 0, 3), (2, 0, 3)]
    answer(core, plan, 1, 2)
    # Two decodes leave 6 of 8 tokens, and c has 7: it goes on waiting, and no part of it is computed.
    for computed in (3, 4):
        plan = core.schedule()
        assert rows(plan) == [(1, computed, 1), (2, computed, 1)]
        answer(core, plan, 1, 2)
    plan = core.schedule()
    assert rows(plan) == [(3, 0, 7)]
    assert [end.sequence.request.key for end in answer(core, plan, 3).finished] == ["c"]
    core.check_integrity()


def test_prompts_share_a_step_with_decodes_where_there_is_room() -> None:
    core = scheduler(chunked_prefill=False, max_num_batched_tokens=12, max_model_len=12)
    core.submit(request("a", 5, 7))
    plan = core.schedule()
    answer(core, plan, 1)
    core.submit(request("b", 6, 1))
    core.submit(request("c", 6, 1))
    plan = core.schedule()
    assert rows(plan) == [(1, 5, 1), (2, 0, 6)]
    answer(core, plan, 1, 2)
    assert rows(core.schedule()) == [(1, 6, 1), (3, 0, 6)]


def test_a_preempted_sequence_is_computed_whole_again() -> None:
    core = scheduler(chunked_prefill=False, num_blocks=4, max_num_batched_tokens=16, max_model_len=16)
    core.submit(request("a", 7, 9))
    core.submit(request("b", 7, 9))
    restarted = []
    while (plan := core.schedule()) is not None:
        restarted += [num_tokens for _, before, num_tokens in rows(plan) if before == 0]
        answer(core, plan, *plan.sampling_wire_ids)
        core.check_integrity()
    assert core.counters.preemptions >= 1
    assert restarted[:2] == [7, 7]
    assert all(7 < num_tokens <= 15 for num_tokens in restarted[2:])
