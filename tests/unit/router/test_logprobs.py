"""Log probabilities in columns read as the objects that they stand for; and how many an answer may have."""

from __future__ import annotations

import pytest

from services.router.dispatch.work import FinishReason
from services.router.errors import ApiError
from services.router.generation import logprob_count
from services.router.generation.choice_delta import MAX_TOKENS_WITH_LOGPROBS, ChoiceDelta, in_short_deltas
from services.router.generation.logprob_count import check_num_logprobs
from services.router.logprobs import PromptLogprob, PromptLogprobs, TokenLogprob, TokenLogprobs

ENTRIES = [
    TokenLogprob(7, -0.5, ((7, -0.5), (8, -1.5))),
    TokenLogprob(9, -2.0, ()),
    TokenLogprob(4, -0.25, ((1, -0.125),)),
]


def test_columns_are_a_sequence_of_entries() -> None:
    columns = TokenLogprobs(ENTRIES)
    assert list(columns) == ENTRIES == columns
    assert (columns[1], columns[-1], len(columns)) == (ENTRIES[1], ENTRIES[2], 3)
    for start in range(4):
        for end in range(4):
            assert columns[start:end] == ENTRIES[start:end]


def test_columns_grow_by_entries_and_by_columns() -> None:
    columns = TokenLogprobs()
    columns += ENTRIES[:1]
    columns += TokenLogprobs(ENTRIES)[1:]
    columns += TokenLogprobs(ENTRIES)
    assert columns == ENTRIES * 2
    prompts = PromptLogprobs([PromptLogprob(-1.0, 3, ((1, -0.5),))])
    assert prompts[0].rank == 3


def test_a_long_delta_is_cut() -> None:
    num_tokens = 2 * MAX_TOKENS_WITH_LOGPROBS + 1
    entries = [TokenLogprob(index, -1.0, ()) for index in range(num_tokens)]
    prompt = PromptLogprobs(PromptLogprob(-1.0, index, ()) for index in range(MAX_TOKENS_WITH_LOGPROBS + 1))
    long = ChoiceDelta(
        3, "text", list(range(num_tokens)), TokenLogprobs(entries), FinishReason.STOP, prompt, stop_reason=5
    )
    deltas = list(in_short_deltas(long))
    of_prompt, of_output = deltas[:2], deltas[2:]
    assert [len(delta.prompt_logprobs or ()) for delta in deltas] == [MAX_TOKENS_WITH_LOGPROBS, 1, 0, 0, 0]
    assert [rank for delta in of_prompt for rank in [e.rank for e in delta.prompt_logprobs or ()]] == [
        entry.rank for entry in prompt
    ]
    assert all(not delta.text and not delta.token_ids for delta in of_prompt)
    assert [delta.text for delta in of_output] == ["text", "", ""]
    assert [token for delta in of_output for token in delta.token_ids] == long.token_ids
    assert [entry for delta in of_output for entry in delta.logprobs] == entries
    assert [delta.finish_reason for delta in deltas] == [None] * 4 + [FinishReason.STOP]
    assert [delta.stop_reason for delta in deltas] == [None] * 4 + [5]


def test_too_many_are_refused_by_the_field_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprob_count, "MAX_LOGPROBS_OF_ANSWER", 100)
    check_num_logprobs(100, "max_tokens")
    with pytest.raises(ApiError, match="101 log probabilities") as caught:
        check_num_logprobs(101, "max_tokens")
    assert (caught.value.param, caught.value.code) == ("max_tokens", "too_many_logprobs")
