"""Redis with a password, an ACL user, TLS, a database number and Sentinels."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.config import ConfigError
from shared.discovery import Kind, PartOptions, Registry, source_of
from shared.discovery.endpoint import parse_endpoint
from shared.discovery.redis import RedisConnection, RedisUnavailableError
from shared.discovery.redis.keys import keys_of
from shared.discovery.redis.scripts import LIST
from shared.discovery.registry import Lease
from tests.fakes.ports import free_port
from tests.fakes.redis_sentinels import PASSWORD, Sentinels
from tests.fakes.redis_server import ROOT, RedisServer, needs_redis, redis_server
from tests.fakes.waiting import HANG_S, until
from tests.integration.shared.discovery.conftest import fleet_in, watching

pytestmark = needs_redis
ADDRESS = "10.0.0.1:1"
KEYS = keys_of("quire", Kind.WORKER)


async def find_oneself(options: PartOptions) -> None:
    """Registers a worker, finds it, and deregisters it, as a part with these options does."""
    registry = Registry(options)
    registry.join(Kind.WORKER, [ADDRESS], model="story")
    async for parts in source_of([], Kind.WORKER, registry).watch():
        if ADDRESS in parts.addresses:
            assert parts.by_address[ADDRESS].model == "story"
            break
    lease = registry.leases[Kind.WORKER]
    assert lease.runs
    assert lease.age_s is not None
    await registry.leave()
    assert registry.leases == {Kind.WORKER: Lease(runs=False, age_s=None)}
    await registry.close()


async def test_a_password(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--requirepass", "secret") as redis:
        await find_oneself(PartOptions(redis=redis.url, redis_password="secret"))
        with pytest.raises(RedisUnavailableError, match="invalid username-password pair"):
            await RedisConnection(parse_endpoint(redis.url), password="wrong").run(LIST, KEYS)


async def test_an_address_where_nothing_listens_is_told_in_two_sentences(caplog: pytest.LogCaptureFixture) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(RedisUnavailableError):
        await RedisConnection(parse_endpoint(f"redis://{address}")).run(LIST, KEYS)
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith(f"Redis is unavailable: Error 111 connecting to {address}. Conn")
    assert message.endswith("Known parts stay in use; new ones are not found, and registrations end")
    assert ".." not in message


async def test_the_acl_user_of_the_documentation_can_do_all_within_the_prefix_and_nothing_else(
    redis: RedisServer,
) -> None:
    operations = (ROOT / "docs" / "operations.md").read_text()
    (rule,) = [line for line in operations.splitlines() if line.startswith("ACL SETUSER quire ")]
    redis.command(*rule.replace(">PASSWORD", ">secret").split())
    access = {"redis_username": "quire", "redis_password": "secret"}
    await find_oneself(PartOptions(redis=redis.url, **access))
    await find_oneself(PartOptions(redis=f"{redis.url}/2", **access))
    connection = RedisConnection(parse_endpoint(redis.url), username="quire", password="secret")
    with pytest.raises(RedisUnavailableError, match="no permissions"):
        await connection.run(LIST, keys_of("other", Kind.WORKER), "")
    await connection.close()


async def test_a_database_number(redis: RedisServer) -> None:
    async with fleet_in(f"{redis.url}/3") as fleet, watching(f"{redis.url}/3") as watch:
        fleet.add(ADDRESS)
        await watch.until(ADDRESS)
        assert redis.command("EXISTS", *KEYS) == 0
        assert redis.command("EXISTS", *KEYS, database=3) == 3


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Makes a certificate for 127.0.0.1 that signs itself. Returns its file and that of the key."""
    file, key = tmp_path / "redis.crt", tmp_path / "redis.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(key), "-out", str(file), "-days", "2", "-subj", "/CN=redis",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return file, key


async def test_tls_with_a_certificate_that_the_given_ca_has_signed(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    file, key = certificate
    tls = ("--tls-cert-file", str(file), "--tls-key-file", str(key), "--tls-auth-clients", "no")
    with redis_server(tmp_path) as redis:
        redis.command("CONFIG", "SET", *(word.removeprefix("--") for word in tls))
        redis.command("CONFIG", "SET", "tls-port", str(redis.port + 1))
        url = f"rediss://127.0.0.1:{redis.port + 1}"
        await find_oneself(PartOptions(redis=url, redis_ca=str(file)))
        with pytest.raises(RedisUnavailableError, match="certificate verify failed"):
            await RedisConnection(parse_endpoint(url)).run(LIST, KEYS)
    with pytest.raises(ConfigError, match=r"--redis-ca .*nowhere"):
        Registry(PartOptions(redis=url, redis_ca=str(tmp_path / "nowhere")))


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    started = Sentinels(tmp_path)
    try:
        yield started
    finally:
        started.stop()


def connection_through(sentinels: Sentinels, timeout_seconds: float = HANG_S) -> RedisConnection:
    return RedisConnection(parse_endpoint(sentinels.url), sentinel_password=PASSWORD, timeout_seconds=timeout_seconds)


async def test_after_a_failover_known_parts_stay_and_all_register_at_the_new_primary(sentinels: Sentinels) -> None:
    await until(sentinels.is_watched)
    source = connection_through(sentinels)
    registry = Registry(PartOptions(redis=sentinels.url, redis_sentinel_password=PASSWORD))
    registry.join(Kind.WORKER, [ADDRESS])
    async with fleet_in("unused") as fleet, watching(sentinels.url, connection=source) as watch:
        fleet.add("10.0.0.2:1", connection=connection_through(sentinels))
        await watch.until(ADDRESS, "10.0.0.2:1", is_stale=False)
        sentinels.primary.kill()
        sentinels.sentinels[0].kill()
        await watch.until(ADDRESS, "10.0.0.2:1", is_stale=True)
        watch.seen.clear()
        await watch.until(ADDRESS, "10.0.0.2:1", is_stale=False)
        assert all(parts.addresses == {ADDRESS, "10.0.0.2:1"} for parts in watch.seen)
        # New parts register there, too.
        fleet.add("10.0.0.3:1", connection=connection_through(sentinels))
        await watch.until(ADDRESS, "10.0.0.2:1", "10.0.0.3:1")
        sentinels.primary.start()
        sentinels.sentinels[0].start()
    await registry.leave()
    await registry.close()


async def connected_through(*servers: RedisServer) -> None:
    """Returns once a connection that asks these Sentinels, first to last, has found the primary."""
    connection = RedisConnection(
        parse_endpoint(f"redis+sentinel://{','.join(server.address for server in servers)}/main"),
        sentinel_password=PASSWORD,
    )

    async def is_found() -> bool:
        try:
            await connection.run(LIST, KEYS)
        except RedisUnavailableError:
            return False
        return True

    async with asyncio.timeout(HANG_S):
        while not await is_found():
            pass
    await connection.close()


async def test_a_sentinel_that_is_cut_off_from_the_others_keeps_nobody_from_the_primary(
    tmp_path: Path, sentinels: Sentinels
) -> None:
    """It names a server that is gone, or one that is a replica now."""
    await until(sentinels.is_watched)
    replica = next(server for server in sentinels.servers if server is not sentinels.primary)
    for named in (free_port(), replica.port):
        watched = (f"sentinel monitor main 127.0.0.1 {named} 2", f"requirepass {PASSWORD}")
        stale = RedisServer(tmp_path, *watched, is_sentinel=True)
        try:
            await connected_through(stale, sentinels.sentinels[0])
        finally:
            stale.kill()


async def test_sentinels_that_hang_keep_nobody_from_one_that_answers(sentinels: Sentinels) -> None:
    """They take up the whole time of a call."""
    hanging, answering, _ = sentinels.sentinels
    hanging.pause()
    try:
        await connected_through(*[hanging] * 6, answering)
    finally:
        hanging.resume()


async def test_sentinels_that_do_not_answer_are_named(sentinels: Sentinels) -> None:
    for sentinel in sentinels.sentinels:
        sentinel.kill()
    with pytest.raises(RedisUnavailableError, match=f"no Sentinel names the primary: {sentinels.sentinels[0].address}"):
        await connection_through(sentinels).run(LIST, KEYS)
    for sentinel in sentinels.sentinels:
        sentinel.start()
