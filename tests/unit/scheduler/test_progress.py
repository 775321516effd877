"""How long a worker may take for its steps before it counts as late."""

from __future__ import annotations

from services.scheduler.worker_groups.progress import Patience
from tests.unit.scheduler.driver import request, scheduler


def test_a_worker_that_is_given_up_gets_longer_each_time_until_it_sends_a_result() -> None:
    core = scheduler()
    core.submit(request("a"))
    plan = core.schedule()
    assert plan is not None
    patience = Patience(2.0)
    patience.sent(plan, 0.1)
    patience.answered()
    seconds = []
    for _ in range(12):
        patience.sent(plan, 0.1)
        seconds.append(patience.seconds)
        patience.gave_up()
        patience.lost()
        patience.begin(boot_id=0)
    assert seconds == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, *[128.0] * 6]
    patience.sent(plan, 0.1)
    patience.answered()
    patience.sent(plan, 0.1)
    assert patience.seconds == 2.0
