from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator

import pytest

from shared.discovery import Parts
from shared.discovery.dns_source import LOOKUP_TIMEOUT_S, DnsSource, resolve, split_name
from shared.discovery.rhythm import JITTER, LOOKUP_S
from tests.fakes.loop_clock import LoopClock

LONGEST_PAUSE_S = LOOKUP_S * (1 + JITTER)


class Resolver:
    """Answers with `answer`; an exception is raised. While `answer` is None, it does not answer."""

    def __init__(self, answer: frozenset[str] | Exception | None) -> None:
        self.answer = answer
        self.num_running = 0
        self.most_running = 0

    async def __call__(self, name: str, port: int) -> frozenset[str]:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            while self.answer is None:  # noqa: ASYNC110 - the test sets it
                await asyncio.sleep(0.1)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer
        finally:
            self.num_running -= 1


async def changes_of(watch: AsyncIterator[Parts], clock: LoopClock) -> Parts:
    """Returns the next value, and lets as much time pass as the source needs."""
    change = asyncio.ensure_future(anext(watch))
    while not change.done():
        await clock.pass_by(0.1)
    return change.result()


async def test_every_address_of_the_name_is_known_and_changes_follow_within_the_interval() -> None:
    clock, resolver = LoopClock(), Resolver(frozenset({"10.0.0.1:50052", "10.0.0.2:50052"}))
    watch = DnsSource("scheduler", 50052, resolver).watch()
    first = await changes_of(watch, clock)
    assert first.addresses == {"10.0.0.1:50052", "10.0.0.2:50052"}
    assert not first.is_stale
    resolver.answer = frozenset({"10.0.0.2:50052", "10.0.0.3:50052"})
    change = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    await clock.pass_by(LONGEST_PAUSE_S)
    assert (await change).addresses == {"10.0.0.2:50052", "10.0.0.3:50052"}


async def test_nothing_is_yielded_while_the_answer_stays_the_same() -> None:
    clock, resolver = LoopClock(), Resolver(frozenset({"10.0.0.1:1"}))
    watch = DnsSource("worker", 1, resolver).watch()
    await changes_of(watch, clock)
    change = asyncio.ensure_future(anext(watch))
    for _ in range(20):
        await clock.pass_by(LONGEST_PAUSE_S)
    assert not change.done()
    change.cancel()


@pytest.mark.parametrize("answer", [socket.gaierror(socket.EAI_NONAME, "Name or service not known"), frozenset(), None])
async def test_a_failed_empty_or_missing_answer_keeps_the_last_known_addresses(
    answer: frozenset[str] | Exception | None,
) -> None:
    clock, resolver = LoopClock(), Resolver(frozenset({"10.0.0.1:1"}))
    watch = DnsSource("worker", 1, resolver).watch()
    await changes_of(watch, clock)
    resolver.answer = answer
    stale = await changes_of(watch, clock)
    assert stale.addresses == {"10.0.0.1:1"}
    assert stale.is_stale
    resolver.answer = frozenset({"10.0.0.2:1"})
    again = await changes_of(watch, clock)
    assert again.addresses == {"10.0.0.2:1"}
    assert not again.is_stale


async def test_a_name_that_cannot_be_looked_up_at_first_is_an_empty_stale_set() -> None:
    clock, resolver = LoopClock(), Resolver(socket.gaierror(socket.EAI_AGAIN, "Try again"))
    watch = DnsSource("worker", 1, resolver).watch()
    assert await changes_of(watch, clock) == Parts({}, is_stale=True)
    resolver.answer = frozenset({"10.0.0.1:1"})
    assert (await changes_of(watch, clock)).addresses == {"10.0.0.1:1"}


async def test_a_name_with_an_impossible_label_is_stale_too() -> None:
    watch = DnsSource("a" * 64 + ".example", 1).watch()
    assert await anext(watch) == Parts({}, is_stale=True)


async def test_a_resolver_that_hangs_is_asked_once_at_a_time() -> None:
    clock, resolver = LoopClock(), Resolver(None)
    watch = DnsSource("worker", 1, resolver).watch()
    await changes_of(watch, clock)
    change = asyncio.ensure_future(anext(watch))
    for _ in range(20):
        await clock.pass_by(LOOKUP_TIMEOUT_S)
    assert (resolver.num_running, resolver.most_running) == (1, 1)
    change.cancel()
    await asyncio.gather(change, return_exceptions=True)
    await asyncio.sleep(0)
    assert resolver.num_running == 0


async def test_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, resolver = LoopClock(), Resolver(socket.gaierror(socket.EAI_AGAIN, "Try again"))
    watch = DnsSource("worker", 1, resolver).watch()
    await changes_of(watch, clock)
    change = asyncio.ensure_future(anext(watch))
    for _ in range(20):
        await clock.pass_by(LONGEST_PAUSE_S)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "cannot look up worker: Try again; keeping the last known addresses: none"
    ]
    change.cancel()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("scheduler:50052", ("scheduler", 50052)),
        ("scheduler.quire.svc.cluster.local.:50052", ("scheduler.quire.svc.cluster.local.", 50052)),
        ("localhost:50052", None),
        ("10.0.0.7:50052", None),
        ("[::1]:50052", None),
        ("unix:/run/quire.sock", None),
        ("unix:1", None),
        ("dns:///scheduler:50052", None),
        ("scheduler", None),
    ],
)
def test_only_host_names_are_looked_up(address: str, name: tuple[str, int] | None) -> None:
    assert split_name(address) == name


@pytest.mark.parametrize(
    ("found", "addresses"),
    [
        ([(socket.AF_INET6, "fd00::1"), (socket.AF_INET, "10.0.0.1")], {"10.0.0.1:5"}),
        ([(socket.AF_INET6, "fd00::1")], {"[fd00::1]:5"}),
        ([], set()),
    ],
)
async def test_ipv6_addresses_are_used_if_there_is_no_ipv4_address(
    monkeypatch: pytest.MonkeyPatch, found: list[tuple[int, str]], addresses: set[str]
) -> None:
    async def getaddrinfo(host: str, port: int, *, type: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:  # noqa: A002
        return [(family, type, 6, "", (ip, port)) for family, ip in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await resolve("worker", 5) == addresses
