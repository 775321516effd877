from __future__ import annotations

import pytest

from shared.config import ConfigError, build
from shared.discovery.endpoint import Endpoint, parse_endpoint
from shared.discovery.options import DiscoveryOptions, PartOptions
from shared.discovery.redis.advertised import advertised_address, is_loopback


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("redis://redis", Endpoint((("redis", 6379),))),
        ("redis://redis:6380/", Endpoint((("redis", 6380),))),
        ("redis://[fd00::1]:6380/3", Endpoint((("fd00::1", 6380),), database=3)),
        ("rediss://redis.example", Endpoint((("redis.example", 6379),), has_tls=True)),
        ("redis+sentinel://s1,s2:26380/main", Endpoint((("s1", 26379), ("s2", 26380)), master_name="main")),
        ("rediss+sentinel://s1/main/2", Endpoint((("s1", 26379),), True, "main", 2)),
    ],
)
def test_the_url_names_redis_or_its_sentinels(url: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(url) == endpoint


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis:6379", "use redis://"),
        ("http://redis", "use redis://"),
        ("redis://user:secret@redis", "QUIRE_REDIS_PASSWORD"),
        ("redis+sentinel://s1", "add the name of the primary"),
        ("redis://a,b", r"several hosts need redis\+sentinel"),
        ("redis://a/b", "use a database number"),
        ("redis://a:b", "use host:port"),
        ("redis://", "use host:port"),
    ],
)
def test_a_url_that_cannot_be_read_stops_the_start(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        DiscoveryOptions(redis=url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"advertise": "a:1"}, "--advertise is set without --redis"),
        ({"redis_ca": "ca.pem"}, "--redis-ca is set without --redis"),
        ({"redis_username": "quire"}, "--redis-username is set without --redis"),
        ({"redis": "redis://a", "redis_ca": "ca.pem"}, "use rediss://"),
        ({"redis": "redis://a", "advertise": "host"}, "use host:port"),
    ],
)
def test_options_that_would_do_nothing_stop_the_start(flags: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        build(PartOptions, flags, {})


@pytest.mark.parametrize(
    ("advertise", "listening", "address"),
    [
        ("", ["10.0.0.5:50071", "unix:/x"], "10.0.0.5:50071"),
        ("", ["0.0.0.0:50071"], "10.0.0.9:50071"),
        ("", ["[::]:50071"], "10.0.0.9:50071"),
        ("", ["unix:/x"], "unix:/x"),
        ("worker-3:50071", ["0.0.0.0:50071"], "worker-3:50071"),
    ],
)
def test_a_part_advertises_the_first_address_it_listens_on(advertise: str, listening: list[str], address: str) -> None:
    assert advertised_address(advertise, listening, "10.0.0.9") == address


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("unix:/x", True), ("10.0.0.1:1", False),
     ("10.0.0.1", False), ("127.0.0.1", True), ("[fd00::1]:1", False), ("worker:1", False)],
)  # fmt: skip
def test_addresses_that_other_hosts_cannot_reach(address: str, expected: bool) -> None:
    assert is_loopback(address) == expected
