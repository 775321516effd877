"""How long a worker may take for its steps before it counts as late."""

from __future__ import annotations

import pytest

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
        patience.begin(boot_id=0, is_warm=True)
    assert seconds == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, *[128.0] * 6]
    patience.sent(plan, 0.1)
    patience.answered()
    patience.sent(plan, 0.1)
    assert patience.seconds == 2.0


@pytest.mark.parametrize(("is_warm", "least"), [(True, 5.0), (False, 30.0)])
def test_the_first_step_of_a_kind_may_take_longer(is_warm: bool, least: float) -> None:
    core = scheduler()
    core.submit(request("a"))
    plan = core.schedule()
    assert plan is not None
    patience = Patience(2.0)
    patience.begin(boot_id=1, is_warm=is_warm)
    patience.sent(plan, 0.1)
    assert patience.seconds == least
    patience.answered()
    patience.sent(plan, 0.1)
    assert patience.seconds == 2.0
    patience.lost()
    patience.begin(boot_id=2, is_warm=is_warm)
    patience.sent(plan, 0.1)
    assert patience.seconds == least


def test_a_plan_that_only_ends_sequences_gets_no_more_time() -> None:
    """Not even the first one."""
    core = scheduler()
    core.submit(request("a"))
    plan = core.schedule()
    assert plan is not None
    core.abort("a")
    ending = core.schedule()
    assert ending is not None
    assert ending.num_tokens == 0
    patience = Patience(2.0)
    patience.begin(boot_id=1, is_warm=False)
    patience.sent(ending, 0.0)
    assert patience.seconds == 2.0
    patience.sent(plan, 0.1)
    assert patience.seconds == 30.0
