"""The gateway's /metrics with two real routers, either of which may answer a scrape."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.router.config import RouterConfig
from services.router.main import Router
from tests.integration.gateway.client import call
from tests.integration.gateway.conftest import Gateway, start_gateway
from tests.integration.router.conftest import MODEL, fake_scheduler

# A metric's name and its labels.
Series = tuple[str, tuple[tuple[str, str], ...]]


@asynccontextmanager
async def running_router(listen: str, scheduler: str) -> AsyncIterator[Router]:
    router = Router(RouterConfig(listen=(listen,), scheduler=(scheduler,), drain_timeout=0))
    await router.start()
    try:
        await router.ready.wait()
        yield router
    finally:
        await router.stop()


@pytest.fixture
async def pair(short_directory: Path) -> AsyncIterator[tuple[Gateway, Router, Router]]:
    scheduler = fake_scheduler()
    addresses = [f"unix:{short_directory}/{name}.sock" for name in ("one", "other")]
    try:
        target = await scheduler.start()
        async with running_router(addresses[0], target) as one, running_router(addresses[1], target) as other:
            gateway = await start_gateway(short_directory, addresses)
            yield gateway, one, other
            await gateway.stop()
    finally:
        await scheduler.stop()


async def scrape(gateway: Gateway) -> dict[Series, float]:
    """Every counter, and every number of every histogram."""
    reply = await call(gateway.address, "GET", "/metrics")
    assert reply.status == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        if family.type in ("counter", "histogram")
        for sample in family.samples
    }


async def test_no_counter_falls_from_one_scrape_to_the_next(pair: tuple[Gateway, Router, Router]) -> None:
    gateway, one, other = pair
    ids = {one.id, other.id}
    assert len(ids) == 2
    body = json.dumps({"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 4}).encode()
    latest: dict[Series, float] = {}
    num_requests, num_scrapes = 0, 0
    by_router: dict[str, float] = defaultdict(float)
    # Both routers have answered requests and scrapes, and the numbers that they showed last are complete.
    while num_scrapes < 40 or set(by_router) != ids or sum(by_router.values()) != 3 * num_requests:
        if num_scrapes < 40:
            replies = await asyncio.gather(*(call(gateway.address, "POST", "/v1/completions", body) for _ in range(4)))
            assert [reply.status for reply in replies] == [200] * 4
            num_requests += 4
        found = await scrape(gateway)
        num_scrapes += 1
        for series, value in found.items():
            assert value >= latest.get(series, 0.0), (series, latest[series])
        latest |= found
        for (name, labels), value in found.items():
            if name == "vllm:prompt_tokens_total":
                by_router[dict(labels)["router"]] = value
    assert all("router" in dict(labels) for _, labels in latest)
