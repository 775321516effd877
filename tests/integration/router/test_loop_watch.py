"""The router tells how long its event loop was held up, and an alert looks at that."""

from __future__ import annotations

import time
from pathlib import Path

import yaml

from services.router.loop_watch import INTERVAL_SECONDS
from tests.fakes.waiting import until
from tests.integration.router.conftest import StartRouter, fake_scheduler

ALERTS = Path(__file__).parents[3] / "deploy" / "prometheus" / "alerts.yml"
NAME = "quire:event_loop_delay_seconds"


async def test_a_hold_up_is_counted(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    delays = api.router.metrics.event_loop_delay
    await until(lambda: sum(delays._counts) > 0)
    # Of the event loop that the router shares with this test.
    time.sleep(0.3)  # noqa: ASYNC251
    await until(lambda: delays._sum >= 0.3 - INTERVAL_SECONDS)
    text = (await api.get("GetMetrics")).messages[0].decode()
    counts = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(NAME)
    }
    label = f'router="{api.router.id}"'
    assert counts[f"{NAME}_count{{{label}}}"] > counts[f'{NAME}_bucket{{le="0.2",{label}}}']


def test_the_alert_s_threshold_is_a_bucket() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    (rule,) = group["rules"]
    assert f"{NAME}_count" in rule["expr"]
    assert f'{NAME}_bucket", le="0.2"' in rule["expr"]
