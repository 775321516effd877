"""What a client is told when the scheduler has no room for its request."""

from __future__ import annotations

import pytest

from services.scheduler.core.scheduler import RefusedError
from tests.unit.scheduler.driver import request, scheduler


def test_a_request_for_more_than_the_queue_and_the_batch_hold_is_told_the_most() -> None:
    core = scheduler(max_num_queued_reqs=2, max_num_seqs=4)
    with pytest.raises(RefusedError) as refused:
        core.check_room("many", 7)
    assert refused.value.failure.field == "choices"
    assert refused.value.failure.message == (
        "This request asks for at least 7 sequences, but this server accepts at most 6 per request. Ask for fewer."
    )


def test_a_full_queue_is_named_with_its_length() -> None:
    core = scheduler(max_num_queued_reqs=2, max_num_seqs=4)
    for number in range(6):
        core.submit(request(f"{number}", prompt_len=1, turn_id="many"))
    core.schedule()
    with pytest.raises(RefusedError) as refused:
        core.check_room("another", 1)
    assert refused.value.failure.message == (
        "The queue is full: 2 sequences are waiting, and there is no room for 1 more."
    )
