"""The line that a refused request leaves in the log, and how many there are."""

from __future__ import annotations

import pytest

from shared.malformed import LOG_INTERVAL_S, MAX_HOSTS, RefusalLog


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_host_has_one_line_at_a_time_whatever_its_ports(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RefusalLog(clock)
    for port in range(100):
        log.refused(f"ipv4:10.0.0.1:{40_000 + port}", "/some.Service/Method", "no message")
    assert caplog.messages == ["refused a request from ipv4:10.0.0.1 to /some.Service/Method: no message"]
    log.refused("ipv6:[::1]:5", "/some.Service/Method", "no message")
    assert len(caplog.messages) == 2
    clock.now += LOG_INTERVAL_S
    log.refused("ipv4:10.0.0.1:1", "/some.Service/Method", "another")
    assert caplog.messages[2:] == [
        "refused a request from ipv4:10.0.0.1 to /some.Service/Method: another (99 more since the last such line)"
    ]


def test_many_hosts_share_one_line(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RefusalLog(clock)
    for _ in range(3):
        caplog.clear()
        for host in range(10 * MAX_HOSTS):
            log.refused(f"ipv4:10.1.{host // 256}.{host % 256}:1", "/some.Service/Method", "no message")
        # One of each host that is counted apart, and one of all the others.
        assert len(caplog.messages) in (MAX_HOSTS, MAX_HOSTS + 1)
        assert sum("other hosts" in message for message in caplog.messages) == 1
        clock.now += LOG_INTERVAL_S


def test_a_long_reason_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    RefusalLog().refused("unix:", "/some.Service/Method", "x" * 100_000)
    assert len(caplog.messages[0]) < 400
