"""Parts find each other in a real Redis, whatever happens to it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter

import pytest

from shared.discovery import Kind, Part
from shared.discovery.redis import RedisUnavailableError, registration
from shared.discovery.redis.keys import describe, keys_of, mark_of, read_changes, read_parts
from shared.discovery.redis.scripts import LEAVE, LIST, REGISTER
from tests.fakes.redis_server import RedisServer, needs_redis
from tests.fakes.tcp_proxy import tcp_proxy
from tests.fakes.waiting import until
from tests.integration.shared.discovery.conftest import connect, fleet_in, watching

pytestmark = needs_redis
A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
# Redis does not answer in time. Calls that are answered take milliseconds; if a slow machine takes longer, the parts
# are stale for a while longer, which no test forbids.
SILENCE_S = 2.0


async def test_parts_of_the_same_kind_and_prefix_are_found(redis: RedisServer) -> None:
    async with fleet_in(redis.url) as fleet, watching(redis.url) as watch:
        await watch.until()
        fleet.add(A, boot_id="a-1", model="story", kv_tokens=4096)
        fleet.add("10.0.9.1:1", kind=Kind.SCHEDULER)
        fleet.add("10.0.9.2:1", prefix="other")
        fleet.add(B)
        parts = await watch.until(A, B, is_stale=False)
        part = parts.by_address[A]
        assert part == Part(A, "a-1", "story", "1", kv_tokens=4096)


async def test_only_parts_of_the_model_are_found_once_the_model_is_known(redis: RedisServer) -> None:
    model = ""
    async with fleet_in(redis.url) as fleet, watching(redis.url, model_name=lambda: model) as watch:
        own = fleet.add(A, model='a "quoted" näme')
        fleet.add(B, model="b")
        await watch.until(A, B, is_stale=False)
        model = 'a "quoted" näme'
        await watch.until(A, is_stale=False)
        num_seen = len(watch.seen)
        fleet.add("10.0.0.4:1", model="b")
        fleet.add(C, model=model)
        await watch.until(A, C, is_stale=False)
        assert {part.model for parts in watch.seen[num_seen:] for part in parts.by_address.values()} == {model}
        # That the last ones of the model are gone is believed, because Redis knows others.
        await own.leave()
        await watch.until(C, is_stale=False)
        await fleet.stop(C)
        await watch.until(is_stale=False)


async def test_changes_of_other_models_cost_few_bytes(redis: RedisServer) -> None:
    keys, connection = keys_of("quire", Kind.WORKER), connect(redis.url)
    for address, model in ((A, "a"), (B, "b")):
        await connection.run(REGISTER, keys, address, describe(Part(address, "1", model, "1")), "60000")
    _, fields, _ = await connection.run(LIST, keys, "", mark_of("a"))
    known, version = read_parts(fields, {})
    assert set(known) == {A}
    await connection.run(REGISTER, keys, B, describe(Part(B, "2", "b", "1")), "60000")
    _, of_change, fields, _ = await connection.run(LIST, keys, version, mark_of("a"))
    assert fields == [B.encode(), None]
    assert set(read_changes(fields, known)) == {A}
    await connection.run(REGISTER, keys, A, describe(Part(A, "1", "b", "1")), "60000")
    _, _, fields, total = await connection.run(LIST, keys, of_change.decode(), mark_of("a"))
    assert read_changes(fields, known) == {}
    assert total == 2
    await connection.close()


async def test_a_part_that_leaves_is_gone_without_its_lease_having_ended(redis: RedisServer) -> None:
    async with fleet_in(redis.url) as fleet, watching(redis.url) as watch:
        part = fleet.add(A)
        fleet.add(B)
        await watch.until(A, B, is_stale=False)
        await part.leave()
        await watch.until(B, is_stale=False)


async def test_a_part_that_dies_is_gone_when_its_lease_ends(redis: RedisServer) -> None:
    async with fleet_in(redis.url) as fleet, watching(redis.url) as watch:
        part = fleet.add(A, lease_seconds=0.2)
        fleet.add(B)
        await until(lambda: part.registration.is_registered)
        await part.die()
        await watch.until(B, is_stale=False)
    assert redis.command("ZCARD", "quire:worker:leases") == 0
    assert redis.command("HKEYS", "quire:worker:parts") == [b""]


async def test_a_restarted_part_takes_over_its_address_and_its_old_self_cannot_end_that_lease(
    redis: RedisServer,
) -> None:
    async with fleet_in(redis.url) as fleet, watching(redis.url) as watch:
        fleet.add(B)
        old = fleet.add(A, boot_id="old")
        await until(lambda: old.registration.is_registered)
        old_task = old.registration._renewing
        assert old_task is not None
        old_task.cancel()
        new = fleet.add(A, boot_id="new")
        await until(lambda: new.registration.is_registered)
        await old.registration.leave()
        parts = await watch.until(A, B, is_stale=False)
        assert parts.by_address[A].boot_id == "new"


async def test_two_parts_with_one_address_are_told_so(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async with fleet_in(redis.url) as fleet:
        fleet.add(A, boot_id="one")
        fleet.add(A, boot_id="two")
        await until(lambda: "has registered the same address in Redis, 10.0.0.1:1" in caplog.text)


async def test_an_address_that_others_cannot_reach_gives_a_warning_only_if_redis_is_elsewhere(
    redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    async with fleet_in(redis.url) as fleet:
        near = fleet.add("127.0.0.1:1")
        await until(lambda: near.registration.is_registered)
        assert "other hosts cannot reach" not in caplog.text
        monkeypatch.setattr("shared.discovery.redis.connection._local_host", lambda peer, port: "10.0.0.9")
        fleet.add("127.0.0.1:2")
        await until(lambda: "other hosts cannot reach this worker at 127.0.0.1:2" in caplog.text)


async def test_a_wildcard_is_registered_as_the_address_on_the_way_to_redis(redis: RedisServer) -> None:
    async with fleet_in(redis.url) as fleet, watching(redis.url) as watch:
        fleet.add("0.0.0.0:50071")
        await watch.until("127.0.0.1:50071")


@pytest.mark.parametrize("loss", ["FLUSHALL", "restart", "leases evicted", "parts evicted"])
async def test_after_a_loss_of_data_known_parts_stay_and_all_register_again(redis: RedisServer, loss: str) -> None:
    async with fleet_in(redis.url) as fleet, watching(redis.url) as watch:
        dead = fleet.add(A)
        fleet.add(B)
        await watch.until(A, B, is_stale=False)
        await dead.die()
        watch.seen.clear()
        if loss == "restart":
            redis.kill()
            redis.start()
        else:
            redis.command(*{"FLUSHALL": ["FLUSHALL"], "leases evicted": ["DEL", "quire:worker:leases"]}.get(
                loss, ["DEL", "quire:worker:parts"]
            ))  # fmt: skip
        fleet.add(C)
        await watch.until(A, B, C, is_stale=True)
        # The dead part did not register again, so it is forgotten after a lease of contact.
        await watch.until(B, C, is_stale=False)
        assert all({A, B} <= parts.addresses for parts in watch.seen if parts.is_stale)


async def test_all_parts_stay_known_while_redis_is_stopped(redis: RedisServer) -> None:
    async with fleet_in(redis.url) as fleet, watching(redis.url, timeout_seconds=SILENCE_S) as watch:
        fleet.add(A)
        fleet.add(B)
        await watch.until(A, B, is_stale=False)
        redis.pause()
        try:
            await watch.until(A, B, is_stale=True)
        finally:
            redis.resume()
        await watch.until(A, B, is_stale=False)


async def test_a_part_that_is_alone_behind_a_partition_keeps_what_it_knows(redis: RedisServer) -> None:
    async with (
        tcp_proxy(redis.port) as proxy,
        fleet_in(redis.url) as fleet,
        watching(f"redis://127.0.0.1:{proxy.port}", timeout_seconds=SILENCE_S) as watch,
    ):
        leaving = fleet.add(A)
        fleet.add(B)
        await watch.until(A, B, is_stale=False)
        proxy.stall()
        await watch.until(A, B, is_stale=True)
        await leaving.leave()
        fleet.add(C)
        proxy.unstall()
        await watch.until(A, B, C, is_stale=True)
        await watch.until(B, C, is_stale=False)


async def test_a_part_registers_again_once_redis_is_reachable_again(redis: RedisServer) -> None:
    async with tcp_proxy(redis.port) as proxy, fleet_in(redis.url) as fleet, watching(redis.url) as watch:
        connection = connect(f"redis://127.0.0.1:{proxy.port}", SILENCE_S)
        part = fleet.add(A, connection=connection, lease_seconds=1.0)
        fleet.add(B)
        await watch.until(A, B)
        proxy.stall()
        await watch.until(B, is_stale=False)
        await until(lambda: not part.registration.is_registered)
        proxy.unstall()
        await watch.until(A, B)


async def test_no_lease_ends_while_redis_refuses_to_write(redis: RedisServer) -> None:
    async with fleet_in(redis.url) as fleet, watching(redis.url) as watch:
        for address in (A, B):
            fleet.add(address, lease_seconds=3.0)
        await watch.until(A, B, is_stale=False)
        redis.command("CONFIG", "SET", "maxmemory", "1")
        before = redis.command("HGETALL", "quire:worker:parts")
        await until(lambda: redis.command("ZRANGEBYSCORE", "quire:worker:leases", "-inf", _now(redis)) != [])
        watch.seen.clear()
        await watch.until(A, B, is_stale=True)
        assert redis.command("HGETALL", "quire:worker:parts") == before
        redis.command("CONFIG", "SET", "maxmemory", "0")
        await watch.until(A, B, is_stale=False)
        assert all(parts.addresses == {A, B} for parts in watch.seen)


def _now(redis: RedisServer) -> str:
    seconds, microseconds = redis.time()
    return str(seconds * 1000 + microseconds // 1000)


async def test_an_unchanged_list_costs_a_few_bytes(redis: RedisServer) -> None:
    async with tcp_proxy(redis.port) as proxy, fleet_in(redis.url) as fleet:
        parts = [fleet.add(f"10.0.1.{number}:1") for number in range(100)]
        await until(lambda: all(part.registration.is_registered for part in parts))
        connection = connect(f"redis://127.0.0.1:{proxy.port}")
        keys = keys_of("quire", Kind.WORKER)
        _, fields, _ = await connection.run(LIST, keys, "")
        version = dict(zip(fields[::2], fields[1::2], strict=True))[b""].decode()
        whole = proxy.num_bytes_from_target
        assert isinstance(await connection.run(LIST, keys, version), int)
        assert proxy.num_bytes_from_target - whole < 20
        assert whole > 100 * 20
        await connection.close()


async def test_a_change_of_a_long_list_costs_as_much_as_its_own_description(redis: RedisServer) -> None:
    async with tcp_proxy(redis.port) as proxy, fleet_in(redis.url) as fleet:
        parts = [fleet.add(f"10.0.1.{number}:1") for number in range(100)]
        await until(lambda: all(part.registration.is_registered for part in parts))
        connection = connect(f"redis://127.0.0.1:{proxy.port}")
        keys = keys_of("quire", Kind.WORKER)
        known, version = read_parts((await connection.run(LIST, keys, ""))[1], {})
        whole = proxy.num_bytes_from_target
        added = fleet.add(A)
        await until(lambda: added.registration.is_registered)
        _, _, fields, _ = await connection.run(LIST, keys, version)
        assert read_changes(fields, known).keys() == known.keys() | {A}
        assert proxy.num_bytes_from_target - whole < 200
        await connection.close()


@pytest.mark.parametrize("seed", range(5))
async def test_lists_made_of_changes_are_those_that_redis_has(redis: RedisServer, seed: int) -> None:
    """Readers that ask rarely or often, while parts come, go and change, some of them with an older release's scripts,
    and while Redis loses keys."""
    chance = random.Random(seed)
    connection = connect(redis.url)
    keys = keys_of("quire", Kind.WORKER)
    readers: list[tuple[dict[str, Part], str]] = [({}, "")] * 3
    replies: Counter[int] = Counter()
    for _ in range(600):
        address = f"10.0.0.{chance.randrange(30)}:1"
        description = describe(Part(address, boot_id=str(chance.randrange(3)), model=chance.choice(("a", "b"))))
        match chance.choices(("register", "leave", "expire", "older", "lose", "read"), (30, 10, 2, 1, 0.3, 20))[0]:
            case "register":
                await connection.run(REGISTER, keys, address, description, "3600000")
            case "leave":
                await connection.run(LEAVE, keys, address, description)
            case "expire":
                redis.command("ZADD", keys[0], "XX", "1", address)
            case "older":
                if redis.command("HEXISTS", keys[1], address):
                    redis.command("HSET", keys[1], address, describe(Part(address, boot_id="older")))
                    redis.command("HSET", keys[1], "", f"older.{chance.random()}")
            case "lose":
                redis.command("DEL", chance.choice(keys))
            case _:
                index = chance.randrange(3)
                known, version = readers[index]
                # The last reader is of one model.
                model = "a" if index == 2 else ""
                reply = await connection.run(LIST, keys, version, mark_of(model))
                replies[1 if isinstance(reply, int) else len(reply)] += 1
                truth, present = read_parts(_items(redis.command("HGETALL", keys[1])), {})
                if not isinstance(reply, int):
                    is_whole = len(reply) == 3
                    known, version = (
                        read_parts(reply[1], known) if is_whole else (read_changes(reply[2], known), reply[1].decode())
                    )
                    assert reply[-1] == len(truth)
                readers[index] = (known, version)
                of_model = {address: part for address, part in truth.items() if not model or part.model == model}
                assert (known, version) == (of_model, present)
    assert min(replies[kind] for kind in (1, 3, 4)) > 0
    await connection.close()


def _items(reply: object) -> list[bytes]:
    assert isinstance(reply, dict)
    return [text for item in reply.items() for text in item]


async def test_a_call_that_was_cut_short_does_not_confuse_the_next_one(redis: RedisServer) -> None:
    connection = connect(redis.url)
    keys = keys_of("quire", Kind.WORKER)
    await connection.run(LIST, keys, "")
    redis.pause()
    cut = asyncio.ensure_future(connection.run(LIST, keys, "no such version"))
    await asyncio.sleep(0.05)
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    redis.resume()
    _, fields, _ = await connection.run(LIST, keys, "")
    assert fields[0] == b""
    await connection.close()


async def test_a_call_after_a_restart_needs_no_second_try(redis: RedisServer) -> None:
    connection = connect(redis.url)
    keys = keys_of("quire", Kind.WORKER)
    await connection.run(LIST, keys, "")
    redis.kill()
    redis.start()
    await connection.run(LIST, keys, "")
    assert connection.num_connections == 2
    await connection.close()


async def test_a_failover_that_a_renewal_notices_first_makes_the_list_of_the_same_process_stale(
    redis: RedisServer,
) -> None:
    connection = connect(redis.url)
    async with fleet_in(redis.url) as fleet, watching(redis.url, connection=connection) as watch:
        lagging = fleet.add(A)
        fleet.add(B, connection=connection)
        await watch.until(A, B, is_stale=False)
        await lagging.die()
        # As with Sentinel: the connection ends, and the new primary lacks a part. The generation is the same.
        redis.command("CLIENT", "KILL", "TYPE", "normal")
        await until(lambda: connection.num_connections == 2)
        version = redis.command("HGET", "quire:worker:parts", "")
        assert isinstance(version, bytes)
        redis.command("HSET", "quire:worker:parts", "", version.split(b".")[0].decode() + ".other")
        redis.command("ZREM", "quire:worker:leases", A)
        redis.command("HDEL", "quire:worker:parts", A)
        await watch.until(A, B, is_stale=True)
        await watch.until(B, is_stale=False)


async def test_a_call_fails_when_its_time_is_over_and_says_so(redis: RedisServer) -> None:
    redis.pause()
    try:
        with pytest.raises(RedisUnavailableError, match=r"no answer within 0.2 s"):
            await connect(redis.url, timeout_seconds=0.2).run(LIST, ("a", "b", "c"), "")
    finally:
        redis.resume()


async def test_a_part_stops_soon_although_redis_does_not_answer(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "LEAVE_TIMEOUT_S", 0.5)
    async with fleet_in(redis.url) as fleet:
        part = fleet.add(A)
        await until(lambda: part.registration.is_registered)
        redis.pause()
        try:
            await part.leave()  # its connection waits forever, so this would hang
        finally:
            redis.resume()


async def test_parts_that_another_release_describes_are_read_and_garbage_is_left_out(redis: RedisServer) -> None:
    async with fleet_in(redis.url) as fleet, watching(redis.url) as watch:
        fleet.add(A)
        await watch.until(A)
        for address, text in {
            B: '{"boot_id":"b","zone":"z"}',
            C: "garbage",
            "10.0.0.4:1": '["list"]',
            "10.0.0.6:1": '{"kv_tokens":"many"}',
            "10.0.0.7:1": '{"kv_tokens":-1}',
        }.items():
            redis.command("HSET", "quire:worker:parts", address, text)
            redis.command("ZADD", "quire:worker:leases", "9999999999999", address)
        redis.command("HSET", "quire:worker:parts", "", "older.release")
        fleet.add("10.0.0.5:1")
        parts = await watch.until(A, B, "10.0.0.5:1")
        assert parts.by_address[B] == Part(B, "b")
